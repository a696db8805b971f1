"""Room: a store that is full, that drops pages by itself, or that cannot write for a while."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress

import pytest

from stepwell import DONE, Capability, Done, Failed, PageResult, Storage
from stepwell_testkit.bench import Bench
from stepwell_testkit.process import Child, forked, with_file_limit
from stepwell_testkit.storage.base import BIG, PAGE, StorageBase

FillUp = Callable[[], AbstractContextManager[object]]


class Room(StorageBase):
    """What happens where a page does not fit."""

    def test_b083_a_write_without_room_never_becomes_visible(self) -> None:
        """Files may not grow beyond half a page for a while; a store without files must simply go on."""
        self.need_forks()
        make = self.maker()

        def work(child: Child) -> None:
            bench = self.bench_of(make(), BIG, 4)
            bench.put([0])
            results: Sequence[PageResult] = ()
            with with_file_limit(BIG // 2), suppress(OSError):
                results = bench.write([1, 2, 3])
            found = [result == DONE for result in bench.read([0, 1, 2, 3])[0]]
            assert found[0], "a page written before is gone"
            for number, result in enumerate(results, start=1):
                assert found[number] == isinstance(result, Done), f"page {number} answered {result}, found: {found}"
            if self.claims(Capability.LISTS):
                bench.lists([number for number in range(4) if found[number]])
            bench.gets([number for number in range(4) if found[number]])
            bench.put([1, 2, 3])
            bench.gets([0, 1, 2, 3])
            bench.tidy()

        with forked(work) as child:
            child.finish()

    def test_b091_a_full_store_fails_pages_and_shows_none_of_them(self, bench: Bench) -> None:
        fill_up: FillUp | None = self.given("fill_up")
        if fill_up is None:
            pytest.skip("the fixture `fill_up` is not given")
        bench.put(range(4))
        with fill_up():
            results = bench.write(range(4, 12))
            self._agree(bench, range(4, 12), results)
        self._agree(bench, range(4, 12), results)
        assert self.claims(Capability.EVICTS) or bench.found(range(4)) == [True] * 4, "a full store lost other pages"
        bench.put(range(4, 12))
        bench.gets(range(4, 12))

    def test_evicts_holds(self, storage: Storage) -> None:
        """Half as much again as it can hold: no write fails, new pages are there, and some of the oldest are not.

        A store that drops in its own time may take a new page for an old one now and then, but not often.
        """
        self.need(Capability.EVICTS)
        page = max(PAGE, self.limit_bytes // 64 // PAGE * PAGE)
        count = self.limit_bytes * 3 // 2 // page + 1
        bench = self.bench_of(storage, page, 1)
        lost = []
        for number in range(count):
            bench.put([number])
            lost += [] if bench.found([number])[0] else [number]
        assert len(lost) <= count // 16, f"pages {lost} of {count} were written and not found right afterwards"
        found = self._held(bench, count)
        assert len(found) < count, f"{count} pages of {page} bytes were written and none was dropped"
        assert len(found) >= count // 8, f"only {len(found)} of {count} pages are left"
        if self.claims(Capability.LISTS):
            sizes = bench.listed()
            listed = {number for number in range(count) if bench.key(number) in sizes}
            after = self._held(bench, count)  # it may drop more in its own time
            assert listed >= found & after, f"pages {sorted((found & after) - listed)} are held and not listed"
            assert listed <= found | after, f"pages {sorted(listed - found - after)} were dropped and are listed"

    def _held(self, bench: Bench, count: int) -> set[int]:
        return {number for number in range(count) if bench.found([number])[0]}

    def _agree(self, bench: Bench, numbers: Sequence[int], results: Sequence[PageResult]) -> None:
        """What was written is found, what failed is not, whatever the store has dropped since."""
        found = bench.found(numbers)
        for number, result, there in zip(numbers, results, found, strict=True):
            assert not (there and isinstance(result, Failed)), f"writing page {number} failed, and a read finds it"
            may_drop = self.claims(Capability.EVICTS)
            assert there or may_drop or not isinstance(result, Done), f"page {number} answered DONE and is not found"
