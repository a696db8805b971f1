"""The caller's memory: what a call may read and fill, and how pages lie in the arena."""

from __future__ import annotations

import random
import tracemalloc

import pytest

from stepwell import DONE, Capability, Storage
from stepwell_testkit.bench import PAINT, Bench
from stepwell_testkit.storage.base import BIG, KIB, PAGE, SLOTS, StorageBase


class Memory(StorageBase):
    """The arena belongs to core, and a view to its call."""

    def test_a_write_is_over_when_it_returns(self, bench: Bench) -> None:
        bench.put([1, 2, 3])  # and scribbles over the views at once
        bench.arena.paint(0x3C)
        bench.gets([1, 2, 3])

    def test_a_read_touches_only_its_views(self, bench: Bench) -> None:
        bench.put([1, 2, 3])
        bench.arena.paint(0x3C)
        bench.storage.read(bench.keys([3, 9, 1]), bench.arena.views([8, 3, 5]))
        others = [slot for slot in range(SLOTS) if slot not in (8, 3, 5)]
        touched = [slot for slot in others if set(bench.arena.slack(slot)) != {0x3C}]
        assert not touched, f"a read into slots 8, 3 and 5 also changed slots {touched}"
        assert bench.arena.page(8) == bench.bytes_of(3)
        assert bench.arena.page(5) == bench.bytes_of(1)

    def test_a_read_touches_nothing_beyond_the_end_of_a_page(self, storage: Storage) -> None:
        bench = self.bench_of(storage, PAGE - 96, 4)
        bench.put([1, 2])
        bench.arena.paint(0x3C)
        bench.storage.read(bench.keys([1, 2]), bench.arena.views([2, 0]))
        for slot in (0, 2):
            assert set(bench.arena.slack(slot)[PAGE - 96 :]) == {0x3C}

    def test_a_write_changes_nothing_in_the_arena(self, bench: Bench) -> None:
        for slot in range(SLOTS):
            bench.arena.fill(slot, bench.bytes_of(slot))
        before = bytes(bench.arena.memory)
        bench.storage.write(bench.keys([1, 5, 3]), bench.arena.views([1, 5, 3]))
        assert bytes(bench.arena.memory) == before

    def test_pages_lie_anywhere_in_the_arena(self, bench: Bench) -> None:
        slots = random.Random(3).sample(range(SLOTS), 24)
        bench.write(range(24), slots)
        for number, slot in enumerate(reversed(slots)):
            results, pages = bench.read([number], [slot])
            assert results[0] == DONE and pages[0] == bench.bytes_of(number)

    def test_views_may_be_a_slice_of_others(self, bench: Bench) -> None:
        bench.put(range(8))
        bench.arena.paint(PAINT)
        bench.storage.read(bench.keys([5, 6]), bench.arena.views(range(8))[2:4])
        assert [bench.arena.page(slot) for slot in (2, 3)] == [bench.bytes_of(5), bench.bytes_of(6)]

    @pytest.mark.parametrize("page_bytes", [256, PAGE, PAGE + 520, 64 * KIB, BIG])
    def test_a_page_may_have_any_size(self, storage: Storage, page_bytes: int) -> None:
        bench = self.bench_of(storage, page_bytes, 4)
        bench.put([1, 2, 3])
        bench.gets([3, 1, 2, 1])

    def test_zero_copy_holds(self, storage: Storage) -> None:
        """A read may not put its pages anywhere else first: Python allocates less than half a page for four."""
        self.need(Capability.ZERO_COPY)
        bench = self.bench_of(storage, BIG, 4)
        bench.put(range(4))
        keys, views = bench.keys(range(4)), bench.arena.views(range(4))
        tracemalloc.start()
        try:
            storage.read(keys, views)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < BIG // 2, f"reading four pages of {BIG} bytes allocated {peak} bytes"

    def test_named_memory_holds(self, bench: Bench) -> None:
        """The arena had a name while it was attached, and has none now: what was opened then must do."""
        self.need(Capability.NAMED_MEMORY)
        assert not bench.arena.name
        slots = range(SLOTS - 8, SLOTS)
        bench.write(range(8), slots)
        results, pages = bench.read(range(8), slots)
        assert set(results) == {DONE}
        assert pages == [bench.bytes_of(number) for number in range(8)]
