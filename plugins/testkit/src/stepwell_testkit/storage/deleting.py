"""Deletion: a promise of those that claim DELETES, a wish to all others."""

from __future__ import annotations

import threading

from stepwell import Capability
from stepwell_testkit.bench import Bench
from stepwell_testkit.process import LIMIT_S
from stepwell_testkit.storage.base import PAGE, SLOTS, WORKERS, StorageBase
from stepwell_testkit.together import at_once


class Deleting(StorageBase):
    """What `delete` leaves and what it takes."""

    def test_delete_takes_nothing_else_and_any_key(self, bench: Bench) -> None:
        bench.put([1, 2, 3])
        bench.storage.delete(bench.keys([2, 99, 2]))
        bench.storage.delete(bench.keys([99]))
        bench.gets([1, 3])
        bench.found([2])  # right bytes, if any
        bench.put([2])
        bench.gets([1, 3])

    def test_deleted_pages_are_missing_and_others_stay(self, bench: Bench) -> None:
        self.need(Capability.DELETES)
        bench.put([1, 2, 3])
        bench.storage.delete(bench.keys([2, 99]))
        bench.lacks([2, 99])
        bench.gets([1, 3])
        bench.put([2])
        bench.gets([1, 2, 3])
        bench.storage.delete(bench.keys([1, 3, 1]))
        bench.lacks([1, 3])

    def test_a_page_just_used_can_be_deleted(self, bench: Bench) -> None:
        """Whoever used it last: no lease, pin or cache keeps it."""
        self.need(Capability.DELETES)
        for number in range(8):
            bench.put([number])
            bench.storage.contains(bench.keys([number]))
            bench.gets([number, number])
            bench.storage.delete(bench.keys([number]))
            bench.lacks([number])
        claims = bench.storage.contains(bench.keys(range(8)))
        assert sum(map(bool, claims)) < 8, "contains still claims every page that was deleted"

    def test_what_was_deleted_is_gone_for_every_thread(self, bench: Bench) -> None:
        """Seven threads have read what the eighth deletes: a read that begins after the deletion does not find it."""
        self.need(Capability.DELETES)
        pages = range(20)
        deleted = [False] * len(pages)
        bench.put(pages)
        warm, over = (threading.Barrier(WORKERS, timeout=LIMIT_S) for _ in range(2))

        def work(worker: int) -> None:
            for number in pages:
                bench.found_at(8 * worker, [number])
            warm.wait()
            for number in pages:
                if worker == 0:
                    bench.storage.delete([bench.key(number)])
                    deleted[number] = True
                    continue
                for asked in (number, number // 2):
                    gone = deleted[asked]
                    found = bench.found_at(8 * worker, [asked])[0]
                    assert not (gone and found), f"page {asked} was deleted, and a read that began later finds it"
            over.wait()
            for number in pages:
                found = bench.found_at(8 * worker, [number])[0]
                assert not found, f"page {number} was deleted, and a read that began later finds it"

        at_once(work, WORKERS)
        bench.lacks(pages)

    def test_b084_a_page_gone_since_contains_is_missing(self, bench: Bench) -> None:
        self.need(Capability.DELETES)
        bench.put(range(8))
        other = self.reopened(PAGE, SLOTS, bench.salt) if self.claims(Capability.SHARED) else bench
        bench.storage.contains(bench.keys(range(8)))
        other.storage.delete(other.keys([2, 5]))
        assert bench.found(range(8)) == [number not in (2, 5) for number in range(8)]
