"""The kit of storages."""

from __future__ import annotations

import multiprocessing
import random
import time
import tracemalloc
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import repeat
from typing import ClassVar

import pytest

from stepwell import DONE, Capability, Done, Missing, PageKey, PageResult, Storage
from stepwell_testkit.bench import PAINT, Bench, answers, new_salt
from stepwell_testkit.kit import Kit
from stepwell_testkit.process import LIMIT_S, Child, forked, with_file_limit
from stepwell_testkit.together import at_once

KIB = 1024
PAGE = 4 * KIB
BIG = 1024 * KIB
SLOTS = 64


class StorageKit(Kit):
    """Tests a `Storage`: give the fixture `storage`, a new one that holds nothing else a test would notice.

    A claim of PERSISTENT or SHARED needs the fixture `reopen` too: a callable that makes one more instance on the same
    pages. A claim of EVICTS needs `limit_bytes`: the store that the fixture gives is full by then.
    """

    required: ClassVar[tuple[str, ...]] = ("storage",)
    limit_bytes: ClassVar[int] = 0
    """Bytes of pages after which the store under test has to drop some; more than 2 MiB, and not much more."""
    forks: ClassVar[bool] = True
    """False where the client library does not survive a fork: tests that need another process are then skipped."""

    @classmethod
    def kit_fixtures(cls) -> tuple[str, ...]:
        again = {Capability.PERSISTENT, Capability.SHARED} & cls.provides
        return (*cls.required, "reopen") if again else cls.required

    @classmethod
    def kit_refusals(cls) -> list[str]:
        refusals = super().kit_refusals()
        if Capability.EVICTS in cls.provides and cls.limit_bytes <= 0:
            refusals.append(f"{cls.__name__}: claims EVICTS, so say in limit_bytes when the store is full")
        return refusals

    @pytest.fixture
    def bench(self, storage: Storage) -> Bench:
        """The storage with an arena of 4 KiB pages."""
        return Bench(storage, PAGE, SLOTS)

    # --- what a call answers -------------------------------------------------------------------------------------

    def test_it_is_a_storage(self, storage: Storage) -> None:
        assert isinstance(storage, Storage)

    def test_a_written_page_comes_back(self, bench: Bench) -> None:
        bench.put([1])
        bench.gets([1])

    def test_a_page_never_written_is_missing(self, bench: Bench) -> None:
        results, _ = bench.read([1, 2, 3])
        assert all(isinstance(result, Missing) for result in results), f"absent pages gave {results}"

    def test_answers_are_in_the_order_of_the_keys(self, bench: Bench) -> None:
        bench.put([1, 3, 4, 7])
        asked = [7, 2, 1, 5, 4, 6, 3, 8]
        assert bench.found(asked) == [number in (1, 3, 4, 7) for number in asked]

    def test_an_empty_batch_gives_no_answers(self, bench: Bench) -> None:
        assert len(bench.storage.contains([])) == 0
        assert len(bench.storage.read([], bench.arena.views([]))) == 0
        assert len(bench.storage.write([], bench.arena.views([]))) == 0
        bench.storage.delete([])

    def test_a_large_batch_is_one_call(self, bench: Bench) -> None:
        numbers = list(range(SLOTS))
        bench.put(numbers)
        bench.gets(numbers[::-1])

    def test_a_key_may_repeat_in_a_batch(self, bench: Bench) -> None:
        bench.put([1, 2, 1, 1])
        bench.gets([1, 1, 2, 1])
        assert len(bench.storage.contains(bench.keys([1, 1, 9, 1]))) == 4
        bench.storage.delete(bench.keys([1, 1]))
        bench.lacks([1, 1])
        bench.gets([2])

    def test_contains_mostly_tells_what_a_read_would_find(self, bench: Bench) -> None:
        bench.put(range(32))
        claims = bench.storage.contains(bench.keys(range(64)))
        assert len(claims) == 64
        assert all(claim in (True, False) for claim in claims)
        right = sum(bool(claim) == (number < 32) for number, claim in enumerate(claims))
        assert right >= 58, f"contains was right for {right} of 64 keys"

    def test_an_existing_key_may_be_written_again(self, bench: Bench) -> None:
        bench.put([1, 2])
        bench.put([3, 1, 4])
        bench.gets([1, 2, 3, 4])

    def test_either_value_of_a_rewritten_key_may_stay_but_whole(self, bench: Bench) -> None:
        old, new = b"\x11" * PAGE, b"\x22" * PAGE
        for fill in (old, new):
            bench.arena.fill(0, fill)
            assert answers(bench.storage.write([bench.key(1)], bench.arena.views([0])), 1)[0] == DONE
        results, pages = bench.read([1])
        assert results[0] == DONE
        assert pages[0] in (old, new)

    def test_keys_that_differ_in_one_byte_are_different_pages(self, bench: Bench) -> None:
        base = bench.key(0)
        keys = [base[:at] + bytes([base[at] ^ 1]) + base[at + 1 :] for at in range(len(base))]
        self._hold_apart(bench, [base, *keys])

    def test_a_key_may_have_any_bytes(self, bench: Bench) -> None:
        salt = bench.key(0)[:16]
        odd = [b"\0" * 24, b"\xff" * 24, b"../" * 8, b"/" * 24, b"\n\r\t %?*" * 3, b"a" * 24, b"A" * 24]
        self._hold_apart(bench, [salt + tail for tail in odd])

    def test_deleted_pages_are_missing_and_others_stay(self, bench: Bench) -> None:
        bench.put([1, 2, 3])
        bench.storage.delete(bench.keys([2, 99]))
        bench.lacks([2, 99])
        bench.gets([1, 3])
        bench.put([2])
        bench.gets([1, 2, 3])

    # --- the caller's memory -------------------------------------------------------------------------------------

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
        bench = Bench(storage, PAGE - 96, 4)
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
        bench = Bench(storage, page_bytes, 4)
        bench.put([1, 2, 3])
        bench.gets([3, 1, 2, 1])

    # --- many calls ----------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("seed", range(4))
    def test_random_calls_agree_with_a_dictionary(self, bench: Bench, seed: int) -> None:
        dice = random.Random(seed)
        held: set[int] = set()
        for _ in range(150):
            numbers = [dice.randrange(40) for _ in range(dice.randint(0, 8))]
            match dice.choice(["write", "write", "read", "read", "delete", "contains"]):
                case "write":
                    bench.put(numbers)
                    held.update(numbers)
                case "read":
                    assert bench.found(numbers) == [number in held for number in numbers]
                case "delete":
                    bench.storage.delete(bench.keys(numbers))
                    held.difference_update(numbers)
                case "contains":
                    assert len(bench.storage.contains(bench.keys(numbers))) == len(numbers)
        assert bench.found(range(40)) == [number in held for number in range(40)]

    def test_b084_removal_during_reads_gives_right_bytes_or_a_miss(self, bench: Bench) -> None:
        arenas = [bench.arena.views(range(8 * i, 8 * i + 4)) for i in range(8)]

        def work(worker: int) -> None:
            dice = random.Random(worker)
            slots = arenas[worker]
            for _ in range(120):
                number = dice.randrange(4)
                one, at = slots[number : number + 1], 8 * worker + number
                match dice.randrange(3):
                    case 0:
                        bench.arena.fill(at, bench.bytes_of(number))
                        result = bench.storage.write([bench.key(number)], one)[0]
                        assert result == DONE, result
                    case 1:
                        bench.storage.delete([bench.key(number)])
                    case 2:
                        bench.arena.fill(at, bytes([PAINT]) * PAGE)
                        result = bench.storage.read([bench.key(number)], one)[0]
                        assert isinstance(result, Done | Missing), result
                        assert result != DONE or bench.arena.page(at) == bench.bytes_of(number)

        at_once(work, 8)

    def test_batches_from_many_threads_do_not_mix(self, bench: Bench) -> None:
        def work(worker: int) -> None:
            mine = [100 * worker + i for i in range(8)]
            slots = range(8 * worker, 8 * worker + 8)
            for _ in range(6):
                assert set(bench.write(mine, slots)) == {DONE}
                results, pages = bench.read(mine, slots)
                assert set(results) == {DONE}
                wrong = [number for number, page in zip(mine, pages, strict=True) if page != bench.bytes_of(number)]
                assert not wrong, f"pages {wrong} came back with other bytes"

        at_once(work, 8)

    def test_b087_two_writers_of_a_key_never_give_a_mix(self, storage: Storage) -> None:
        bench = Bench(storage, BIG, 3)
        key = bench.key(1)
        fills = (b"\x11" * BIG, b"\x22" * BIG)

        writing = [True, True]

        def write(worker: int) -> None:
            bench.arena.fill(worker, fills[worker])
            for turn in range(40):
                result = storage.write([key], bench.arena.views([worker]))[0]
                assert result == DONE, result
                if turn % 4 == 2:
                    storage.delete([key])
                time.sleep(0.0005)  # lets the others in, whatever else the machine does
            writing[worker] = False

        def read(_: int) -> None:
            while True:
                last = not any(writing)
                result = storage.read([key], bench.arena.views([2]))[0]
                assert isinstance(result, Done | Missing), result
                assert result != DONE or bench.arena.page(2) in fills, "a page mixes the bytes of two writers"
                if last:
                    assert result == DONE, "both writers were told that the key is there"
                    return

        at_once(lambda worker: (write, write, read)[worker](worker), 3)

    def test_close_is_the_last_call(self, bench: Bench) -> None:
        bench.put(range(8))
        bench.gets(range(8))
        bench.storage.close()

    # --- failures ------------------------------------------------------------------------------------------------

    def test_b083_a_write_without_room_never_becomes_visible(self, request: pytest.FixtureRequest) -> None:
        """Files may not grow beyond half a page for a while; a store without files must simply go on."""
        self._need_forks()

        def work(child: Child) -> None:
            bench = Bench(request.getfixturevalue("storage"), BIG, 4)
            bench.put([0])
            results: Sequence[PageResult] = ()
            with with_file_limit(BIG // 2), suppress(OSError):
                results = bench.write([1, 2, 3])
            found = [result == DONE for result in bench.read([0, 1, 2, 3])[0]]
            assert found[0], "a page written before is gone"
            for number, result in enumerate(results, start=1):
                assert found[number] == isinstance(result, Done), f"page {number} answered {result}, found: {found}"
            bench.gets([number for number in range(4) if found[number]])
            bench.put([1, 2, 3])
            bench.gets([0, 1, 2, 3])

        with forked(work) as child:
            child.finish()

    # --- capabilities --------------------------------------------------------------------------------------------

    def test_zero_copy_holds(self, storage: Storage) -> None:
        """A read may not put its pages anywhere else first: Python allocates less than half a page for four."""
        self.need(Capability.ZERO_COPY)
        bench = Bench(storage, BIG, 4)
        bench.put(range(4))
        keys, views = bench.keys(range(4)), bench.arena.views(range(4))
        tracemalloc.start()
        try:
            storage.read(keys, views)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < BIG // 2, f"reading four pages of {BIG} bytes allocated {peak} bytes"

    def test_persistent_holds_over_a_close(self, bench: Bench, request: pytest.FixtureRequest) -> None:
        self.need(Capability.PERSISTENT)
        bench.put(range(16))
        bench.storage.delete(bench.keys([3]))
        bench.storage.close()
        again = Bench(_reopen(request)(), PAGE, SLOTS, bench.salt)
        again.gets([number for number in range(16) if number != 3])
        again.lacks([3])
        again.storage.close()

    def test_persistent_holds_over_the_end_of_a_process(self, request: pytest.FixtureRequest) -> None:
        self.need(Capability.PERSISTENT)
        self._need_forks()
        reopen = _reopen(request)
        salt = new_salt()

        def work(child: Child) -> None:
            bench = Bench(reopen(), PAGE, 16, salt)
            bench.put(range(16))
            bench.storage.close()

        with forked(work) as child:
            child.finish()
        Bench(reopen(), PAGE, 16, salt).gets(range(16))

    def test_persistent_holds_over_a_kill(self, request: pytest.FixtureRequest) -> None:
        """Killed while it writes: it opens again, and each page is whole or missing."""
        self.need(Capability.PERSISTENT)
        self._need_forks()
        reopen = _reopen(request)
        salt = new_salt()

        def work(child: Child) -> None:
            bench = Bench(reopen(), BIG, 8, salt)
            for numbers in repeat(range(8)):
                bench.put(numbers)
                bench.storage.delete(bench.keys(numbers))
                child.tell()

        for part in (0.2, 0.4, 0.5, 0.6, 0.8):
            with forked(work) as child:
                child.hear(1)
                start = time.monotonic()
                child.hear(1)
                child.kill(after_s=part * (time.monotonic() - start))
            bench = Bench(reopen(), BIG, 8, salt)
            results, pages = bench.read(range(8))
            # A list of numbers, since pytest would spend minutes on the difference of two large pages.
            torn = [at for at in range(8) if results[at] == DONE and pages[at] != bench.bytes_of(at)]
            assert not torn, f"pages {torn} are torn"
            bench.put(range(8))
            bench.gets(range(8))
            bench.storage.close()

    def test_shared_holds(self, bench: Bench, request: pytest.FixtureRequest) -> None:
        self.need(Capability.SHARED)
        other = Bench(_reopen(request)(), PAGE, SLOTS, bench.salt)
        bench.put(range(8))
        other.gets(range(8))
        other.put(range(8, 16))
        bench.gets(range(16))
        other.storage.delete(other.keys([2, 9]))
        bench.lacks([2, 9])
        other.lacks([2, 9])
        other.storage.close()
        bench.gets([1, 10])

    def test_shared_holds_between_processes(self, request: pytest.FixtureRequest) -> None:
        """Two processes write one key with different bytes while a third reads: one or the other, never a mix."""
        self.need(Capability.SHARED)
        self._need_forks()
        reopen = _reopen(request)
        salt = new_salt()
        fills = [bytes([fill]) * BIG for fill in (0x11, 0x22)]
        start = multiprocessing.get_context("fork").Barrier(3, timeout=LIMIT_S)

        def writer(fill: bytes) -> Callable[[Child], None]:
            def work(child: Child) -> None:
                bench = Bench(reopen(), BIG, 1, salt)
                start.wait()
                for turn in range(60):
                    bench.arena.fill(0, fill)
                    result = bench.storage.write([bench.key(1)], bench.arena.views([0]))[0]
                    assert result == DONE, result
                    if turn % 5 == 4:
                        bench.storage.delete([bench.key(1)])
                    time.sleep(0.001)  # lets the other one in, whatever else the machine does
                bench.put([2])
                bench.storage.close()

            return work

        with forked(writer(fills[0])) as one, forked(writer(fills[1])) as two:
            bench = Bench(reopen(), BIG, 1, salt)
            start.wait()
            while one.alive() or two.alive():
                if bench.storage.read([bench.key(1)], bench.arena.views([0]))[0] == DONE:
                    assert bench.arena.page(0) in fills, "a page mixes the bytes of two processes"
            one.finish()
            two.finish()
        bench.gets([2])
        bench.storage.close()

    def test_evicts_holds(self, storage: Storage) -> None:
        """Half as much again as it can hold: no write fails, the latest pages are there, some of the oldest are not."""
        self.need(Capability.EVICTS)
        page = max(PAGE, self.limit_bytes // 64 // PAGE * PAGE)
        count = self.limit_bytes * 3 // 2 // page + 1
        bench = Bench(storage, page, 1)
        for number in range(count):
            bench.put([number])
            bench.gets([number])
        found = [bench.found([number])[0] for number in range(count)]
        assert not all(found), f"{count} pages of {page} bytes were written and none was dropped"
        assert sum(found) >= count // 8, f"only {sum(found)} of {count} pages are left"

    # --- helpers -------------------------------------------------------------------------------------------------

    def _need_forks(self) -> None:
        if not self.forks:
            pytest.skip("its client does not survive a fork")

    def _hold_apart(self, bench: Bench, keys: Sequence[PageKey]) -> None:
        for slot in range(len(keys)):
            bench.arena.fill(slot, bench.bytes_of(slot))
        views = bench.arena.views(range(len(keys)))
        assert set(answers(bench.storage.write(keys, views), len(keys))) == {DONE}
        bench.arena.paint(PAINT)
        assert set(answers(bench.storage.read(keys, views), len(keys))) == {DONE}
        wrong = [slot for slot in range(len(keys)) if bench.arena.page(slot) != bench.bytes_of(slot)]
        assert not wrong, f"keys {[keys[slot].hex() for slot in wrong]} have another's page"


def _reopen(request: pytest.FixtureRequest) -> Callable[[], Storage]:
    reopen: Callable[[], Storage] = request.getfixturevalue("reopen")
    return reopen
