"""A folder of pages: damage, full disks, restarts, time, and files that are not ours."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from stepwell import DONE, MISSING, ConfigError, Done, Failed, PageResult, PageViews
from stepwell_nixl import catalog, make
from stepwell_nixl.config import NixlConfig
from stepwell_nixl.files import FileStorage
from stepwell_nixl.journal import NAME, RECORD, Journal
from stepwell_testkit import KitContext
from stepwell_testkit.bench import Bench

PAGE = 4096
MIB = 1 << 20
Open = Callable[..., Bench]


@pytest.fixture
def config(tmp_path: Path) -> NixlConfig:
    return NixlConfig(path=tmp_path / "pages", gib=24 / 1024, min_free_gib=0)


@pytest.fixture
def open_(config: NixlConfig, context: KitContext) -> Iterator[Open]:
    opened: list[Bench] = []

    def one(page_bytes: int = PAGE, slots: int = 64, salt: str = "", **changes: object) -> Bench:
        storage = make(replace(config, **changes), context)  # type: ignore[arg-type]
        opened.append(Bench(storage, page_bytes, slots, salt))
        return opened[-1]

    yield one
    for bench in opened:
        bench.storage.close()


def store(bench: Bench) -> FileStorage:
    assert isinstance(bench.storage, FileStorage)
    return bench.storage


def segments(config: NixlConfig) -> list[Path]:
    return sorted(config.path.glob("pages-*.nixl"))


def failed(results: Sequence[PageResult]) -> list[int]:
    return [at for at, result in enumerate(results) if isinstance(result, Failed)]


def test_b057_a_cut_file_costs_the_pages_that_are_cut_off(open_: Open, config: NixlConfig) -> None:
    bench = open_()
    bench.put(range(8))
    (data,) = segments(config)
    for end in (6 * PAGE + PAGE - 1, 6 * PAGE + 1, 6 * PAGE):
        os.truncate(data, end)
        results, _ = bench.read(range(8))
        assert failed(results) in ([6, 7], []), results
        assert results[:6] == [DONE] * 6 and not {6, 7} & {at for at in range(8) if results[at] == DONE}
    bench.lacks([6, 7])  # what can never be read again is forgotten
    bench.put([6, 7])
    bench.gets(range(8))


def test_b057_an_error_that_passes_deletes_nothing(open_: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = open_()
    bench.put(range(4))
    with monkeypatch.context() as patch:
        patch.setattr("stepwell_nixl.lanes.FileLane.file", _raise)
        results, _ = bench.read(range(4))
        assert failed(results) == [0, 1, 2, 3]
        results, _ = bench.read([9])
        assert results == [MISSING]
    bench.gets(range(4))


def _raise(*_: object) -> int:
    raise OSError(5, "the disk does not answer")


@pytest.mark.parametrize("direct", [True, False])
def test_b088_a_bad_page_and_a_repeated_key_leave_the_others_alone(open_: Open, direct: bool) -> None:
    bench = open_(direct="auto" if direct else False)
    bench.put([3])
    numbers = [0, 1, 2, 3, 4, 4, 6, 7]
    for slot, number in enumerate(numbers):
        bench.arena.fill(slot, bench.bytes_of(number))
    views = bench.arena.views(range(8))
    views.addresses[6, 0] = bench.arena.address + bench.arena.nbytes  # memory that NIXL was not given
    results = bench.storage.write(bench.keys(numbers), views)
    assert failed(results) == [6] and all(isinstance(results[at], Done) for at in range(8) if at != 6)
    bench.lacks([6])
    bench.gets([0, 1, 2, 3, 4, 7])
    views = bench.arena.views(range(8))
    views.addresses[2, 0] = bench.arena.address + bench.arena.nbytes
    results = bench.storage.read(bench.keys([0, 1, 2, 3, 4, 9, 7, 0]), views)
    assert failed(results) == [2] and results[5] == MISSING
    assert [at for at in range(8) if results[at] == DONE] == [0, 1, 3, 4, 6, 7]


def test_b091_a_full_disk_fails_pages_and_shows_none_of_them(tmp_path: Path, context: KitContext) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(small)], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting a small filesystem needs root")
    try:
        storage = make(NixlConfig(path=small, gib=1, min_free_gib=0), context)
        bench = Bench(storage, 64 * 1024, 64)
        results = bench.write(range(64))
        found = [result == DONE for result in bench.read(range(64))[0]]
        assert found == [isinstance(result, Done) for result in results]
        assert 8 <= sum(found) < 64
        storage.close()
        again = Bench(make(NixlConfig(path=small, gib=1, min_free_gib=0), context), 64 * 1024, 64, bench.salt)
        assert again.found(range(64)) == found
        again.storage.close()
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)


def test_a_page_of_another_size_is_another_page(open_: Open) -> None:
    bench = open_()
    bench.put([1])
    other = open_(page_bytes=2 * PAGE, slots=4, salt=bench.salt)
    other.lacks([1])
    other.put([1])
    bench.lacks([1])
    other.gets([1])


def test_a_torn_journal_is_read_and_continued(open_: Open, config: NixlConfig) -> None:
    bench = open_()
    bench.put(range(4))
    for rubbish in (b"\1", b"x" * (RECORD.itemsize - 1), b"\0" * RECORD.itemsize, os.urandom(3 * RECORD.itemsize + 5)):
        with (config.path / NAME).open("ab") as file:
            file.write(rubbish)
        bench.gets(range(4))
        bench.put([5])
        bench.storage.delete(bench.keys([5]))
    bench.put([6])
    open_(salt=bench.salt).gets([0, 1, 2, 3, 6])


def test_a_journal_of_strangers_is_refused_in_one_sentence(config: NixlConfig, context: KitContext) -> None:
    config.path.mkdir()
    (config.path / NAME).write_bytes(b"something else" * 10)
    with pytest.raises(ConfigError, match="another format"):
        make(config, context)


def test_a_path_that_is_no_folder_is_refused(tmp_path: Path, context: KitContext) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="is not a folder"):
        make(NixlConfig(path=tmp_path / "file"), context)


def test_the_journal_is_written_anew_and_everybody_follows(open_: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "SLACK", 64)
    bench = open_()
    other = open_(salt=bench.salt)
    bench.put([100, 101])
    longest = 0
    for turn in range(12):
        bench.put(range(20))
        other.gets([5, 100, 101])
        bench.storage.delete(bench.keys(range(20)))
        other.lacks([5, 6])
        longest = max(longest, store(bench)._journal.length)
        assert turn < 3 or longest < 200
    other.put([102])
    bench.gets([100, 101, 102])
    open_(salt=bench.salt).gets([100, 101, 102])


def test_a_restart_goes_on_with_the_segment_that_is_not_full(open_: Open, config: NixlConfig) -> None:
    bench = open_()
    bench.put([1])
    for number in range(2, 6):
        bench.storage.close()
        bench = open_(salt=bench.salt)
        bench.put([number])
    assert len(segments(config)) == 1
    bench.gets(range(1, 6))


def test_two_writers_have_a_segment_each(open_: Open, config: NixlConfig) -> None:
    one = open_()
    two = open_(salt=one.salt)
    one.put([1])
    two.put([2])
    assert len(segments(config)) == 2
    one.gets([1, 2])


def test_the_oldest_leave_first_and_the_folder_keeps_its_limit(open_: Open, config: NixlConfig) -> None:
    bench = open_(page_bytes=MIB, slots=4)
    for number in range(40):
        bench.put([number])
        assert sum(path.stat().st_size for path in segments(config)) <= 24 * MIB
    found = [bench.found([number])[0] for number in range(40)]
    kept = sum(found)
    assert 20 <= kept <= 24 and found == [False] * (40 - kept) + [True] * kept


def test_pages_of_another_size_make_the_oldest_leave_too(open_: Open, config: NixlConfig) -> None:
    large = open_(page_bytes=MIB, slots=4)
    for number in range(24):
        large.put([number])
    small = open_(salt=large.salt)
    small.put(range(100, 140))
    small.gets(range(100, 140))
    assert not large.found([0])[0] and large.found([23])[0]
    assert sum(path.stat().st_size for path in segments(config)) <= 24 * MIB


def test_what_a_killed_writer_left_is_cleared_and_strangers_are_not(open_: Open, config: NixlConfig) -> None:
    config.path.mkdir()
    orphan, stranger = config.path / "pages-00000001.nixl", config.path / "pages-of-mine.nixl"
    orphan.write_bytes(b"x")
    stranger.write_bytes(b"x")
    open_().put([1])
    assert not orphan.exists() and stranger.exists()


def test_a_page_outlives_its_time_and_is_missing(open_: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = open_(ttl_h=1)
    bench.put([1, 2])
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 3000)
    bench.gets([1])
    monkeypatch.setattr(time, "time", lambda: now + 3700)
    bench.lacks([1, 2])
    bench.put([1])
    bench.gets([1])
    bench.lacks([2])


def test_a_segment_without_pages_is_removed(open_: Open, config: NixlConfig) -> None:
    bench = open_(page_bytes=MIB, slots=4)
    bench.put([1, 2, 3])
    assert len(segments(config)) == 3
    bench.storage.delete(bench.keys([1, 2, 3]))
    assert len(segments(config)) == 1  # the one that it still writes to


def test_a_segment_that_leaves_during_a_read_is_missing(open_: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its file becomes another's at once, and what the read brought is not passed on."""
    reader = open_(page_bytes=MIB, slots=4)
    writer = open_(page_bytes=MIB, slots=4, salt=reader.salt)
    writer.put([0])
    move = store(reader)._attached

    def late() -> object:
        for number in range(1, 30):
            writer.put([number])
        return move()

    monkeypatch.setattr(reader.storage, "_attached", late)
    results, _ = reader.read([0])
    assert results == [MISSING]


def test_memory_in_several_pieces_is_refused(open_: Open) -> None:
    bench = open_()
    views = PageViews(np.zeros((1, 2), dtype=np.int64), np.array([PAGE, PAGE]), bench.arena.memory, 0)
    with pytest.raises(ValueError, match="in one piece"):
        bench.storage.read([bench.key(1)], views)


def test_two_processes_of_one_folder_agree_on_a_record(tmp_path: Path) -> None:
    one, two = Journal(tmp_path), Journal(tmp_path)
    assert one.news()[0] and two.news()[0]
    record = catalog.records(catalog.Kind.PAGE, 7, [3], 5, [b"k" * 40])
    with one.changing():
        one.append(record)
    for journal in (one, two):
        anew, news = journal.news()
        assert not anew and news is not None and news.tobytes() == record.tobytes()
        journal.close()
