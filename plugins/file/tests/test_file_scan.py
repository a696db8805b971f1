"""The list of pages: those of all processes, each once, and nothing that is gone."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from stepwell import StoredPage
from stepwell_file import FileConfig
from stepwell_file.store import SCAN_PAGES, FileStorage
from stepwell_testkit import KitContext
from stepwell_testkit.bench import Bench

PAGE = 4096


@pytest.fixture
def config(tmp_path: Path) -> FileConfig:
    return FileConfig(tmp_path / "pages", gib=24 / 1024, min_free_gib=0)


@pytest.fixture
def store(config: FileConfig, context: KitContext) -> Iterator[FileStorage]:
    store = FileStorage(config, context)
    yield store
    store.close()


def listed(store: FileStorage) -> dict[bytes, int]:
    pages = [page for batch in store.scan() for page in batch]
    assert all(isinstance(page, StoredPage) for page in pages)
    found = {page.key: page.nbytes for page in pages}
    assert len(found) == len(pages), "a key comes once"
    return found


def test_pages_of_two_users_of_a_folder_are_listed_by_both(
    store: FileStorage, config: FileConfig, context: KitContext
) -> None:
    other = FileStorage(config, context)
    mine, theirs = Bench(store, PAGE, 16), Bench(other, 2 * PAGE, 16)
    mine.put(range(8))
    theirs.put(range(4))
    want = dict.fromkeys(mine.keys(range(8)), PAGE) | dict.fromkeys(theirs.keys(range(4)), 2 * PAGE)
    assert listed(store) == listed(other) == want
    other.delete(theirs.keys([1, 2]))
    mine.put([0, 1])
    assert listed(store).keys() == {*mine.keys(range(8)), *theirs.keys([0, 3])}
    other.close()
    again = FileStorage(config, context)
    assert listed(again) == listed(store)
    again.close()


def test_pages_that_left_with_their_segment_are_not_listed(store: FileStorage) -> None:
    bench = Bench(store, 1 << 20, 4)
    for number in range(0, 60, 4):
        bench.put(range(number, number + 4))
    found = listed(store)
    assert 4 <= len(found) < 60
    there = bench.storage.contains(bench.keys(range(60)))
    assert found.keys() == {key for key, held in zip(bench.keys(range(60)), there, strict=True) if held}


def test_many_pages_come_in_batches(store: FileStorage) -> None:
    bench = Bench(store, 512, 1000)
    for turn in range(5):
        bench.put(range(1000 * turn, 1000 * turn + 1000))
    assert [len(batch) for batch in store.scan()] == [SCAN_PAGES, 5000 - SCAN_PAGES]


def test_a_scan_goes_on_while_pages_come_and_go(store: FileStorage) -> None:
    bench = Bench(store, 512, 1000)
    for turn in range(5):
        bench.put(range(1000 * turn, 1000 * turn + 1000))
    batches = store.scan()
    first = next(batches)
    store.delete([page.key for page in first])
    bench.put([10_000])
    rest = [page.key for batch in batches for page in batch]
    assert not {page.key for page in first} & set(rest)
    assert {page.key for page in first} | set(rest) >= set(bench.keys(range(5000)))
