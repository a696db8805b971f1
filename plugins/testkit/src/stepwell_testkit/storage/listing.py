"""Listing: `scan` yields what is held, each page once, at its size, while pages come and go."""

from __future__ import annotations

import threading
import time

import pytest

from stepwell import Capability, Storage
from stepwell_testkit.bench import Bench
from stepwell_testkit.storage.base import ODD, PAGE, SLOTS, StorageBase
from stepwell_testkit.together import at_once

MANY = 320
ROOM_FOR_CHURN = 400


class Listing(StorageBase):
    """What `scan` lists."""

    def test_without_lists_scan_says_so(self, bench: Bench) -> None:
        if self.claims(Capability.LISTS):
            pytest.skip("claims LISTS")
        with pytest.raises(NotImplementedError):
            next(iter(bench.storage.scan()), None)

    def test_lists_holds(self, bench: Bench) -> None:
        """Exactly what is held, each key once, and nothing that was not there before."""
        self.need(Capability.LISTS)
        before = set(bench.listed())
        bench.lists([])
        bench.put([1, 2, 3, 2])
        bench.put([2, 4])
        bench.lists([1, 2, 3, 4])
        strange = set(bench.listed()) - before - set(bench.keys([1, 2, 3, 4]))
        assert not strange, f"it lists {len(strange)} pages that nobody wrote: {[key.hex() for key in strange]}"
        bench.gets([1, 2, 3, 4])

    @pytest.mark.parametrize("page_bytes", [256, PAGE + 520])
    def test_it_lists_what_a_page_measures(self, storage: Storage, page_bytes: int) -> None:
        self.need(Capability.LISTS)
        bench = self.bench_of(storage, page_bytes, 4)
        bench.put([1, 2])
        sizes = {size for key, size in bench.listed().items() if key in bench.known}
        assert sizes == {page_bytes}, f"pages of {page_bytes} bytes are listed with {sorted(sizes)}"

    def test_it_lists_any_key(self, bench: Bench) -> None:
        self.need(Capability.LISTS)
        keys = [bench.key(0)[:16] + end for end in ODD]
        bench.remember(keys)
        bench.storage.write(keys, bench.arena.views(range(len(keys))))
        assert set(keys) <= set(bench.listed())

    def test_it_lists_many(self, bench: Bench) -> None:
        self.need(Capability.LISTS)
        for first in range(0, MANY, SLOTS):
            bench.put(range(first, first + SLOTS))
        bench.lists(range(MANY))

    def test_deleted_pages_are_not_listed(self, bench: Bench) -> None:
        self.need(Capability.LISTS)
        self.need(Capability.DELETES)
        bench.put(range(16))
        bench.storage.delete(bench.keys(range(0, 16, 2)))
        bench.lists(range(1, 16, 2))
        bench.put([4])
        bench.lists([4, *range(1, 16, 2)])

    def test_pages_may_come_and_go_between_its_batches(self, bench: Bench) -> None:
        self.need(Capability.LISTS)
        stay, going = range(SLOTS), list(range(100, 100 + SLOTS))
        bench.put(stay)
        bench.put(going)

        def look(_: int) -> None:
            seen = []
            for turn, batch in enumerate(bench.storage.scan()):
                seen += [page.key for page in batch]
                if turn < SLOTS:
                    bench.put([1000 + 2 * turn, 1001 + 2 * turn])
                    bench.storage.delete(bench.keys([going[turn]]))
            self._saw(bench, seen)

        at_once(look, 1, 3 * self.patience_s)

    def test_pages_may_come_and_go_while_it_lists(self, bench: Bench) -> None:
        self.need(Capability.LISTS)
        bench.put(range(SLOTS))
        over = threading.Event()

        def churn() -> None:
            # Of a store that cannot delete, only so many pages that none is dropped.
            last = 10**9 if self.claims(Capability.DELETES) else 100 + ROOM_FOR_CHURN
            number = 100
            while not over.is_set() and number < last:
                batch = range(number, number + 8)
                bench.write(batch)
                bench.storage.delete(bench.keys(batch))
                number += 8

        def look() -> None:
            end = time.monotonic() + 5
            try:
                for _ in range(12):
                    self._saw(bench, [page.key for batch in bench.storage.scan() for page in batch])
                    if time.monotonic() > end:
                        break
            finally:
                over.set()

        at_once(lambda worker: (churn, look)[worker](), 2)
        bench.gets(range(SLOTS))

    def test_a_listing_may_be_left_half_way(self, bench: Bench) -> None:
        self.need(Capability.LISTS)
        bench.put(range(SLOTS))

        def leave(_: int) -> None:
            for _ in range(3):
                listing = iter(bench.storage.scan())
                next(listing, None)
                del listing
            one, two = iter(bench.storage.scan()), iter(bench.storage.scan())
            next(one, None)
            next(two, None)
            bench.lists(range(SLOTS))
            bench.put([100])
            bench.storage.delete(bench.keys([0]))
            bench.gets([100, 1])

        at_once(leave, 1, 3 * self.patience_s)

    def test_listing_holds_over_a_close(self, bench: Bench) -> None:
        self.need(Capability.LISTS)
        self.need(Capability.PERSISTENT)
        bench.put(range(16))
        if self.claims(Capability.DELETES):
            bench.storage.delete(bench.keys([3]))
        before = bench.own_listed()
        bench.close()
        again = self.reopened(PAGE, SLOTS, bench.salt)
        again.keys(range(16))
        assert again.own_listed() == before, "it lists other pages than before it was closed"

    def test_pages_of_another_instance_are_listed(self, bench: Bench) -> None:
        self.need(Capability.LISTS)
        self.need(Capability.SHARED)
        other = self.reopened(PAGE, SLOTS, bench.salt)
        bench.put(range(8))
        other.put(range(4, 12))
        for one in (bench, other):
            one.keys(range(12))
            one.lists(range(12))

    def _saw(self, bench: Bench, seen: list[bytes]) -> None:
        """The pages that stay are among them, and no page is twice."""
        assert len(seen) == len(set(seen)), "a listing has a key twice"
        lost = set(bench.keys(range(SLOTS))) - set(seen)
        assert not lost, f"while others came and went, {len(lost)} pages were not listed that were there all the time"
