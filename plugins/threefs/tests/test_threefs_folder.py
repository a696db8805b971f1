"""The folder: several processes, kills, eviction, damage, listing; the system calls alone; the cost of our own code."""

import os
import random
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from stepwell import DONE, MISSING, ConfigError, Failed
from stepwell_testkit import KitContext
from stepwell_testkit.arena import KitArena
from stepwell_testkit.bench import Bench
from stepwell_testkit.process import Child, forked
from stepwell_testkit.together import at_once
from stepwell_threefs import ThreefsConfig, make_native
from stepwell_threefs.moves import Place
from stepwell_threefs.record import RECORD_BYTES, Record
from stepwell_threefs.store import ThreefsStorage

PAGE = 64 * 1024
MIB = 1 << 20
Open = Callable[..., ThreefsStorage]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "pages"


@pytest.fixture
def two(opened: Open, folder: Path) -> Iterator[tuple[Bench, Bench]]:
    """Two nodes on one folder."""
    yield Bench(opened(folder), PAGE, 64, "shared"), Bench(opened(folder), PAGE, 64, "shared")


def data_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.data"))


# --- several processes ------------------------------------------------------------------------------------------------


def test_b076_what_another_node_stored_is_found(two: tuple[Bench, Bench]) -> None:
    one, other = two
    other.lacks(range(8))
    one.put(range(8))
    assert list(other.storage.contains(other.keys(range(8)))) == [True] * 8
    other.gets(range(8))


def test_what_another_node_deleted_is_not_read_though_this_one_has_not_heard_of_it(
    two: tuple[Bench, Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = two
    one.put(range(8))
    other.gets(range(8))
    monkeypatch.setattr(other.storage._catalog, "follow", lambda at_most_s=0.0: None)  # type: ignore[attr-defined]
    one.storage.delete(one.keys([2, 3]))
    assert list(other.storage.contains(other.keys([2]))) == [True], "it should not know yet"
    other.lacks([2, 3])
    other.gets([0, 1, 4, 5, 6, 7])


def test_a_page_of_a_removed_segment_is_not_read_from_a_file_that_is_still_open(
    two: tuple[Bench, Bench], monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    one, other = two
    one.put(range(8))
    one.storage.close()
    other.gets(range(8))
    monkeypatch.setattr(other.storage._catalog, "follow", lambda at_most_s=0.0: None)  # type: ignore[attr-defined]
    third = Bench(ThreefsStorage(ThreefsConfig(folder), KitContext(folder)), PAGE, 8, "shared")
    third.storage.delete(third.keys(range(8)))
    assert not [path for path in data_files(folder) if path.stat().st_blocks]
    other.lacks(range(8))
    third.storage.close()


def test_a_page_that_two_nodes_stored_is_deleted_in_both_places(opened: Open, folder: Path) -> None:
    stores = [opened(folder, refresh_s=1e9) for _ in range(2)]
    one, other = (Bench(store, PAGE, 8, "twice") for store in stores)
    for bench in (one, other):
        bench.storage._catalog._began = time.monotonic()  # type: ignore[attr-defined]
        bench.put(range(4))
    third = Bench(opened(folder), PAGE, 8, "twice")
    third.storage.delete(third.keys([1]))
    for bench in (one, other, third, Bench(opened(folder), PAGE, 8, "twice")):
        bench.lacks([1])
        bench.gets([0, 2, 3])
    one.put([1])
    third.gets([1])


def test_b088_a_page_that_is_there_is_not_written_again(two: tuple[Bench, Bench], folder: Path) -> None:
    one, other = two
    one.put(range(8))
    other.put(range(6, 10))
    used = [sum(segment.used for segment in bench.storage._catalog.segments.values()) for bench in two]  # type: ignore[attr-defined]
    assert max(used) == 10 * PAGE


def test_killed_at_random_moments_every_page_is_right_or_missing(opened: Open, folder: Path) -> None:
    dice = random.Random(5)
    told = 0
    for turn in range(6):
        start = 1000 * turn

        def work(child: Child, start: int = start) -> None:
            bench = Bench(opened(folder), PAGE, 8, "kill")
            for first in count(start, 4):
                bench.put(range(first, first + 4))
                bench.found(range(max(start, first - 8), first))
                child.tell()

        with forked(work) as child:
            child.hear(2)
            child.kill(after_s=dice.random() * 0.03)
        bench = Bench(opened(folder), PAGE, 64, "kill")
        bench.gets(range(start, start + 8))
        for first in range(start, start + 192, 64):
            told += sum(bench.found(range(first, first + 64)))
        bench.storage.close()
    assert told >= 48


def test_a_record_that_is_not_whole_ends_an_index_and_harms_nobody(opened: Open, folder: Path) -> None:
    store = opened(folder)
    Bench(store, PAGE, 8, "torn").put(range(8))
    [index] = folder.glob("*.index")
    whole = index.read_bytes()
    for cut in (whole[:-1], whole[: -RECORD_BYTES // 2], whole[:-8] + bytes(8)):
        index.write_bytes(cut)
        again = Bench(opened(folder), PAGE, 8, "torn")
        assert again.found(range(8)) == [True] * 7 + [False]
    index.write_bytes(whole)
    again.gets(range(8))


# --- room -------------------------------------------------------------------------------------------------------------


def test_the_oldest_leave_when_it_is_full(opened: Open, folder: Path) -> None:
    limit = 16 * MIB
    bench = Bench(opened(folder, gib=1 / 64), PAGE, 8, "limit")
    for first in range(0, 640, 8):
        bench.put(range(first, first + 8))
        bench.gets(range(first, first + 8))
        assert sum(path.stat().st_blocks * 512 for path in data_files(folder)) <= limit + MIB
    found = [bench.found([number])[0] for number in range(640)]
    assert all(found[600:]) and not any(found[:200]) and sum(found) * PAGE > limit * 0.7


def test_a_segment_that_somebody_removed_is_missing_and_its_owner_goes_on(
    two: tuple[Bench, Bench], folder: Path
) -> None:
    one, other = two
    one.put(range(4))
    other.gets(range(4))
    for path in folder.glob("pages-*"):
        path.unlink()
    one.storage._catalog.follow()  # type: ignore[attr-defined]
    one.lacks(range(4))
    other.storage._catalog.follow()  # type: ignore[attr-defined]
    other.lacks(range(4))
    one.put(range(4, 8))
    other.gets(range(4, 8))


def test_deleting_everything_gives_the_room_back(opened: Open, folder: Path) -> None:
    store = opened(folder, gib=1 / 64)
    bench = Bench(store, PAGE, 128, "gone")
    bench.put(range(128))
    store.delete(bench.keys(range(128)))
    assert len(data_files(folder)) <= 2
    assert not [page for part in store.scan() for page in part]
    bench.put(range(128))
    bench.gets(range(128))


def test_a_page_larger_than_the_limit_fails_and_costs_nothing(opened: Open, folder: Path) -> None:
    store = opened(folder, gib=1 / 1024)
    Bench(store, PAGE, 4, "small").put(range(4))
    [result] = Bench(store, 2 * MIB, 1, "large").write([0])
    assert "no room" in result.reason  # type: ignore[union-attr]
    Bench(store, PAGE, 4, "small").gets(range(4))


# --- damage -----------------------------------------------------------------------------------------------------------


def test_b057_a_file_cut_short_fails_its_last_pages_and_they_can_be_stored_anew(opened: Open, folder: Path) -> None:
    bench = Bench(opened(folder), PAGE, 8, "cut")
    bench.put(range(8))
    [data] = data_files(folder)
    os.truncate(data, 5 * PAGE + 100)
    results, pages = bench.read(range(8))
    assert results[:5] == [DONE] * 5 and all(isinstance(result, Failed) for result in results[5:])
    assert data.name.removesuffix(".data") in results[6].reason  # type: ignore[union-attr]
    assert pages[4] == bench.bytes_of(4)
    bench.put(range(8))
    bench.gets(range(8))
    for path in data_files(folder):
        path.unlink()
    other = Bench(opened(folder), PAGE, 8, "cut")
    assert all(isinstance(result, Failed) for result in other.read(range(8))[0])
    other.put(range(8))
    other.gets(range(8))


def test_an_index_that_cannot_be_read_hides_its_own_pages_and_no_others(
    opened: Open, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(opened(folder), PAGE, 8, "index")
    bench.put(range(4))
    for suffix in ("index", "data"):
        (folder / f"pages-000000000001-0000000000000001.{suffix}").mkdir()
    (folder / "pages-000000000002-0000000000000002.index").write_bytes(os.urandom(100_000))
    (folder / "pages-000000000003-0000000000000003.index").write_bytes(Record(9, bytes(40), 0, 1, 0).pack())  # type: ignore[arg-type]
    for one in (bench, Bench(opened(folder), PAGE, 8, "index")):
        one.lacks([7])
        one.put(range(6))
        one.gets(range(6))
        assert len([page for part in one.storage.scan() for page in part]) == 6
    assert caplog.text.count("pages-000000000001-0000000000000001.index cannot be read: Is a directory") == 2


def test_what_cannot_be_removed_does_not_keep_pages_out(opened: Open, folder: Path) -> None:
    store = opened(folder, gib=1 / 64)
    for suffix in ("index", "data"):
        (folder / f"pages-000000000001-0000000000000001.{suffix}").mkdir()
    bench = Bench(store, PAGE, 64, "stuck")
    for first in range(0, 640, 64):
        bench.put(range(first, first + 64))


@pytest.mark.parametrize("now_s", [-1e9, 0.0, 1e9, 1e14])
def test_a_clock_that_jumps_does_not_change_who_is_oldest(
    opened: Open, folder: Path, monkeypatch: pytest.MonkeyPatch, now_s: float
) -> None:
    bench = Bench(opened(folder, gib=1 / 64), PAGE, 64, "clock")
    bench.put(range(64))
    monkeypatch.setattr("time.time_ns", lambda: int(now_s * 1e9))
    for first in range(64, 640, 64):
        bench.put(range(first, first + 64))
        bench.gets(range(first, first + 64))
    assert not any(bench.found(range(64)))


def test_a_transfer_that_outlives_the_threads_ends(opened: Open, folder: Path) -> None:
    store = opened(folder)
    bench = Bench(store, PAGE, 16, "late")
    bench.put(range(16))
    mover, find = store._mover, store._find
    store._find = lambda keys: (mover.close(), find(keys))[1]  # type: ignore[method-assign, assignment, func-returns-value]
    at_once(lambda _: bench.gets(range(16)), 1, 10.0)


def test_b057_flipped_bytes_are_missing_until_they_are_written(opened: Open, folder: Path) -> None:
    bench = Bench(opened(folder), PAGE, 8, "flip")
    bench.put(range(8))
    [data] = data_files(folder)
    with data.open("r+b") as file:
        file.seek(3 * PAGE + 777)
        file.write(b"\xff\x00")
    assert bench.read(range(8))[0] == [DONE] * 3 + [MISSING] + [DONE] * 4
    bench.put([3])
    bench.gets(range(8))


# --- the start --------------------------------------------------------------------------------------------------------


def test_folders_that_cannot_be_used_are_one_sentence(opened: Open, folder: Path) -> None:
    folder.write_text("mine")
    with pytest.raises(ConfigError, match=r"storage.path: .* cannot be used"):
        opened(folder)
    folder.unlink()
    folder.mkdir()
    (folder / "stepwell-3fs.99").touch()
    with pytest.raises(ConfigError, match=r"storage.path: .* another format"):
        opened(folder)


@pytest.mark.parametrize(
    "settings",
    [{"gib": 0.0}, {"threads": 0}, {"threads": 10**6}, {"entries": 10**7}, {"segment_mib": -1.0}, {"refresh_s": -1.0}],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        ThreefsConfig(Path("x"), **settings)  # type: ignore[arg-type]


# --- what it is held against ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("named", [True, False])
def test_the_bare_ways_move_pages_and_leave_nothing(mount: Path, context: KitContext, named: bool) -> None:
    arena = KitArena(PAGE, 16, named=named)
    native = make_native(ThreefsConfig(mount / "pages", entries=4), context, arena)
    arena.unname()
    keys = [bytes([slot]) * 40 for slot in range(8)]
    for slot in range(8):
        arena.fill(slot, bytes([slot + 1]) * PAGE)
    native.put(keys, arena.views(range(8)))
    native.get(keys[::-1], arena.views(range(8, 16)))
    assert [arena.page(slot)[0] for slot in range(8, 16)] == [8, 7, 6, 5, 4, 3, 2, 1]
    native.close()
    assert not list((mount / "pages").glob("native-*"))


class _Nothing:
    """Moves nothing, at once."""

    def move(self, places: list[Place], pages: object, moved: Callable[[int], None], *, write: bool) -> dict[int, str]:
        for _, _, at in places:
            moved(at)
        return {}


def test_our_own_code_costs_little_a_page(opened: Open, folder: Path) -> None:
    """Without the transfers; checksums are in it. The limit is what a busy machine may make of a few microseconds."""
    store = opened(folder)
    size, pages = 512, 4096
    arena = KitArena(size, pages)
    views = arena.views(range(pages))
    keys = [number.to_bytes(40, "big") for number in range(pages)]
    assert set(store.write(keys, views)) == {DONE}
    moved, store._mover = store._mover, _Nothing()  # type: ignore[assignment]
    spent = {}
    for name, call in {
        "read": lambda: store.read(keys, views),
        "write": lambda: store.write([os.urandom(40) for _ in keys], views),
        "contains": lambda: store.contains(keys),
    }.items():
        took = []
        for _ in range(5):
            began = time.thread_time()
            assert set(call()) <= {DONE, True}
            took.append(time.thread_time() - began)
        spent[name] = min(took) / pages * 1e6
    store._mover = moved
    print({name: f"{us:.2f} us a page" for name, us in spent.items()})
    assert spent["read"] < 8 and spent["contains"] < 4 and spent["write"] < 12, spent
