"""Kills, several processes, and what stays when the folder is full."""

import fcntl
import gc
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

from stepwell import DONE
from stepwell_file import FileConfig
from stepwell_file.folder import LOCK
from stepwell_file.segment import HEADER
from stepwell_file.store import FileStorage
from stepwell_testkit import KitContext
from stepwell_testkit.bench import Bench
from stepwell_testkit.process import Child, forked

PAGE = 64 * 1024
MIB = 1 << 20
Open = Callable[..., FileStorage]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "pages"


@pytest.fixture
def opened(folder: Path, context: KitContext) -> Iterator[Open]:
    stores = []

    def make(**settings: object) -> FileStorage:
        config = FileConfig(folder, **({"gib": 1 / 16, "min_free_gib": 0.0} | settings))  # type: ignore[arg-type]
        stores.append(FileStorage(config, context))
        return stores[-1]

    yield make
    for store in stores:
        store.close()


def size_of(folder: Path) -> int:
    """Blocks of all files; one may be evicted meanwhile."""
    total = 0
    for path in folder.iterdir():
        with suppress(FileNotFoundError):
            total += path.stat().st_blocks * 512
    return total


def test_what_was_closed_holds_no_file(folder: Path, context: KitContext) -> None:
    """A segment that is gone takes its space with it only when nobody has it open."""
    store = FileStorage(FileConfig(folder), context)
    bench = Bench(store, PAGE, 4, "gone")
    bench.put(range(4))
    bench.gets(range(4))
    gc.collect()
    gc.disable()
    try:
        store.close()
        del bench, store
        assert not [fd for fd in Path("/proc/self/fd").iterdir() if fd.resolve().is_relative_to(folder)]
    finally:
        gc.enable()


# --- kills ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gib", [1 / 16, 1 / 256])
def test_killed_at_random_moments_every_page_it_lists_is_right(opened: Open, folder: Path, gib: float) -> None:
    """The smaller limit makes it evict, rescue and reuse segments all the time."""
    dice = random.Random(7)
    told = 0
    for turn in range(8):
        start = 1000 * turn

        def work(child: Child, start: int = start) -> None:
            bench = Bench(opened(gib=gib), PAGE, 8, "kill")
            for first in count(start, 4):
                bench.put(range(first, first + 4))
                bench.found(range(max(0, first - 8), first))
                child.tell()

        with forked(work) as child:
            child.hear(2)
            child.kill(after_s=dice.random() * 0.05)
        store = opened(gib=gib)
        bench = Bench(store, PAGE, 64, "kill")
        for first in range(start, start + 400, 64):
            listed = store.contains(bench.keys(range(first, first + 64)))
            found = bench.found(range(first, first + 64))
            assert list(listed) == found, "a page that is listed is read"
            told += sum(found)
        bench.gets(range(start, start + 8)) if gib > 1 / 100 else None
        assert size_of(folder) <= gib * 1024 * MIB + MIB
        store.close()
    assert told > 8


def test_a_restart_goes_on_in_the_segment_that_was_left(opened: Open, folder: Path) -> None:
    for turn in range(6):
        store = opened()
        Bench(store, PAGE, 8, "again").put(range(4 * turn, 4 * turn + 4))
        store.close()
    assert len(list(folder.glob("pages-*.data"))) == 1
    assert size_of(folder) < 24 * PAGE + MIB, "what was reserved and not used is given back"
    Bench(opened(), PAGE, 64, "again").gets(range(24))


def test_it_opens_fast(opened: Open) -> None:
    store = opened()
    bench = Bench(store, 512, 1024, "many")
    for first in range(0, 20480, 1024):
        bench.put(range(first, first + 1024))
    store.close()
    start = time.perf_counter()
    again = opened()
    assert time.perf_counter() - start < 2.0
    assert again.usage().pages == 20480


# --- a folder that is full ------------------------------------------------------------------------------------------


def test_the_limit_holds_and_the_latest_pages_stay(opened: Open, folder: Path) -> None:
    limit = 16 * MIB
    bench = Bench(opened(gib=1 / 64), PAGE, 8, "limit")
    for first in range(0, 640, 8):
        bench.put(range(first, first + 8))
        bench.gets(range(first, first + 8))
        assert size_of(folder) <= limit + MIB // 2
    found = [bench.found([number])[0] for number in range(640)]
    assert sum(found) * PAGE > limit * 0.6
    assert all(found[600:]) and not any(found[:100])


def test_pages_of_use_outlive_their_segment(opened: Open) -> None:
    store = opened(gib=1 / 64)
    bench = Bench(store, PAGE, 8, "hot")
    bench.put(range(8))
    for first in range(1000, 2000, 8):
        bench.put(range(first, first + 8))
        bench.found(range(8))
        time.sleep(0.001)
    assert store.usage().rescued_pages > 8
    assert sum(bench.found(range(8))) >= 6
    bench.lacks(range(1000, 1008))


def test_a_lower_limit_is_kept_from_the_next_segment_on(opened: Open, folder: Path) -> None:
    store = opened(gib=1 / 32)
    Bench(store, PAGE, 256, "less").put(range(256))
    store.close()
    bench = Bench(opened(gib=1 / 128), PAGE, 64, "less")
    for first in range(1000, 1256, 64):
        bench.put(range(first, first + 64))
    assert size_of(folder) <= 8 * MIB + MIB


def test_a_page_larger_than_the_limit_fails_and_costs_nothing(opened: Open) -> None:
    store = opened(gib=1 / 1024)
    Bench(store, PAGE, 4, "small").put(range(4))
    [result] = Bench(store, 2 * MIB, 1, "large").write([0])
    assert "no room" in result.reason  # type: ignore[union-attr]
    Bench(store, PAGE, 4, "small").gets(range(4))


def test_room_that_is_left_to_others_is_not_taken(opened: Open, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    room = os.statvfs(folder.parent)
    free = room.f_bavail * room.f_frsize / (1 << 30)
    if free + 1 > room.f_blocks * room.f_frsize / (1 << 30) / 20:
        monkeypatch.setattr("stepwell_file.space.Space._free", lambda self: self._min_free)
    store = opened(min_free_gib=1.0)
    [result] = Bench(store, PAGE, 1, "guard").write([0])
    assert "no room" in result.reason  # type: ignore[union-attr]


def test_deleting_everything_gives_the_space_back(opened: Open, folder: Path) -> None:
    store = opened(gib=1 / 64)
    bench = Bench(store, PAGE, 128, "gone")
    bench.put(range(128))
    store.delete(bench.keys(range(128)))
    assert size_of(folder) < 2 * MIB + MIB
    assert store.usage().pages == 0
    bench.put(range(128))
    bench.gets(range(128))


# --- several processes ----------------------------------------------------------------------------------------------


def test_b061_four_writers_of_one_page_each_get_their_own_back(opened: Open) -> None:
    clients = [Bench(opened(), PAGE, 1, f"stage {stage} rank {rank}") for stage in range(2) for rank in range(2)]
    for fill, client in enumerate(clients):
        client.arena.fill(0, bytes([fill]) * PAGE)
        assert client.storage.write([client.key(5)], client.arena.views([0])) == [DONE]
    for fill, client in enumerate(clients):
        assert client.storage.read([client.key(5)], client.arena.views([0])) == [DONE]
        assert client.arena.page(0) == bytes([fill]) * PAGE


def test_b076_a_fresh_instance_finds_what_another_stored(opened: Open) -> None:
    late = Bench(opened(), PAGE, 8, "shared")
    late.lacks(range(8))
    Bench(opened(), PAGE, 8, "shared").put(range(8))
    assert list(late.storage.contains(late.keys(range(8)))) == [True] * 8
    late.gets(range(8))


def test_a_process_that_was_stopped_with_the_folder_costs_the_others_writes_alone(
    opened: Open, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepwell_file.folder.PATIENCE_S", 0.3)
    bench = Bench(opened(gib=1 / 64), PAGE, 64, "stopped")
    bench.put(range(4))
    with (folder / LOCK).open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        began = time.monotonic()
        results = bench.write(range(100, 164))
        assert time.monotonic() - began < 10
        assert any("another process has held the folder" in getattr(result, "reason", "") for result in results)
        bench.gets(range(4))
    bench.put(range(200, 264))


def test_b084_b087_processes_that_write_evict_and_delete_never_give_wrong_bytes(opened: Open, folder: Path) -> None:
    """A folder so small that each process evicts what the others are reading."""

    def worker(seed: int) -> Callable[[Child], None]:
        def work(child: Child) -> None:
            dice = random.Random(seed)
            bench = Bench(opened(gib=1 / 128), PAGE, 8, "crowd")
            end = time.monotonic() + 2.0
            while time.monotonic() < end:
                numbers = [dice.randrange(300) for _ in range(dice.randint(1, 8))]
                match dice.randrange(5):
                    case 0 | 1:
                        bench.put(numbers)
                    case 2 | 3:
                        bench.found(numbers)
                    case 4:
                        bench.storage.delete(bench.keys(numbers[:2]))
            bench.storage.close()

        return work

    with forked(worker(1)) as one, forked(worker(2)) as two, forked(worker(3)) as three:
        one.finish()
        two.finish()
        three.finish()
    store = opened(gib=1 / 128)
    Bench(store, PAGE, 300, "crowd").found(range(300))
    assert size_of(folder) <= 8 * MIB + 2 * MIB
    assert store.usage().damaged_pages == 0


def test_a_reader_that_was_overtaken_by_an_eviction_misses(opened: Open) -> None:
    reader = Bench(opened(gib=1 / 128), PAGE, 8, "race")
    writer = Bench(opened(gib=1 / 128), PAGE, 8, "race")
    writer.put(range(8))
    reader.gets(range(8))
    entries = reader.storage._catalog.find(reader.keys(range(8)))  # type: ignore[attr-defined]
    for first in range(100, 500, 8):
        writer.put(range(first, first + 8))
    results = reader.storage._fetch(reader.keys(range(8)), reader.arena.views(range(8)), entries)  # type: ignore[attr-defined]
    for number, result in enumerate(results):
        assert result != DONE or reader.arena.page(number) == reader.bytes_of(number)
    reader.found(range(8))
    assert reader.storage.usage().damaged_pages == 0  # type: ignore[attr-defined]


def test_durable_pages_and_odd_sizes_share_a_segment(opened: Open) -> None:
    store = opened(durable=True)
    small, odd, large = (Bench(store, size, 8, f"of {size}") for size in (300, 5000, 256 * 1024))
    for turn in range(3):
        for bench in (small, odd, large):
            bench.put(range(turn * 4, turn * 4 + 4))
    store.close()
    again = opened()
    for size in (300, 5000, 256 * 1024):
        Bench(again, size, 16, f"of {size}").gets(range(12))


def test_a_size_that_differs_from_what_is_there_is_missing_until_written(opened: Open) -> None:
    store = opened()
    Bench(store, PAGE, 1, "size").put([1])
    half = Bench(store, PAGE // 2, 1, "size")
    half.lacks([1])
    half.put([1])
    half.gets([1])


def test_nothing_of_a_key_reaches_a_name(opened: Open, folder: Path) -> None:
    store = opened()
    bench = Bench(store, PAGE, 1, "name")
    bench.arena.fill(0, bytes(PAGE))
    assert store.write([b"../../../../etc/passwd\0".ljust(40, b"/")], bench.arena.views([0])) == [DONE]
    names = {path.name for path in folder.iterdir()}
    assert len(names) == 4 and all(name.startswith(("pages-", "stepwell-file.")) for name in names)
    assert HEADER == 4096


@pytest.mark.parametrize("what", ["pages-*", "*", "*.index", "*.data"])
def test_what_was_removed_under_the_store_is_not_written_to(opened: Open, folder: Path, what: str) -> None:
    """Somebody clears the folder by hand: a batch may fail, and from then on pages are found again."""
    bench = Bench(opened(), PAGE, 16)
    bench.put(range(8))
    for path in folder.glob(what):
        path.unlink()
    bench.write(range(16))
    bench.put(range(16))
    bench.gets(range(16))
    Bench(opened(), PAGE, 16, bench.salt).gets(range(16))


def test_a_folder_that_was_removed_and_is_back_is_used_again(opened: Open, folder: Path) -> None:
    bench = Bench(opened(), PAGE, 16)
    bench.put(range(8))
    shutil.rmtree(folder)
    with suppress(OSError):
        bench.write(range(16))
    folder.mkdir()
    bench.write(range(16))
    bench.put(range(16))
    bench.gets(range(16))
    Bench(opened(), PAGE, 16, bench.salt).gets(range(16))
