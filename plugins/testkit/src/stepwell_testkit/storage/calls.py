"""Many calls: random ones against a dictionary, and those of several threads at once."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence

import pytest

from stepwell import DONE, Capability, Done, Missing, Storage
from stepwell_testkit.bench import Bench, answers, new_salt
from stepwell_testkit.process import Child, forked
from stepwell_testkit.storage.base import BIG, OUTLIVING, PAGE, SLOTS, WORKERS, StorageBase
from stepwell_testkit.storage.model import PAGES, Step, random_steps, shortest
from stepwell_testkit.together import at_once


class Calls(StorageBase):
    """What adds up over many calls, one after another and at once."""

    @pytest.mark.parametrize("seed", range(4))
    def test_random_calls_agree_with_a_dictionary(self, bench: Bench, seed: int) -> None:
        """Pages are written, read, sliced, asked for; deleted, listed and opened again where that is claimed."""
        calls = ["write", "write", "read", "read", "contains", "slice"]
        calls += ["delete"] if self.claims(Capability.DELETES) else []
        calls += ["scan"] if self.claims(Capability.LISTS) else []
        steps = random_steps(seed, calls, 150)
        if self.claims(Capability.PERSISTENT):
            steps.insert(len(steps) // 2, Step("reopen"))
        used = [bench]
        try:
            self._play(used, steps)
        except Exception as error:
            few = shortest(steps, lambda some: self._fails(used, some))
            story = "; ".join(map(str, few)) if len(few) < 20 else f"{len(few)} calls of seed {seed}"
            raise AssertionError(f"{error}\nIt fails after: {story}") from error

    def _play(self, used: list[Bench], steps: Sequence[Step]) -> None:
        """Make the calls on the last instance of those used; a reopened one joins them."""
        held: set[int] = set()
        for call, numbers in steps:
            bench = used[-1]
            match call:
                case "write":
                    bench.put(numbers)
                    held.update(numbers)
                case "read":
                    assert bench.found(numbers) == [number in held for number in numbers]
                case "slice":
                    views = bench.arena.views(range(len(numbers) + 4))[2 : len(numbers) + 2]
                    results = answers(bench.storage.read(bench.keys(numbers), views), len(numbers))
                    pages = [bench.arena.page(2 + at) for at in range(len(numbers))]
                    assert bench.right(numbers, results, pages) == [number in held for number in numbers]
                case "contains":
                    assert len(bench.storage.contains(bench.keys(numbers))) == len(numbers)
                case "delete":
                    bench.storage.delete(bench.keys(numbers))
                    held.difference_update(numbers)
                case "scan":
                    bench.lists(held)
                case "reopen":
                    bench.close()
                    used.append(self.reopened(PAGE, SLOTS, bench.salt))
        assert used[-1].found(range(PAGES)) == [number in held for number in range(PAGES)]

    def _fails(self, used: list[Bench], steps: Sequence[Step]) -> bool:
        if used[-1].closed:
            return False
        used.append(used[-1].renewed())
        try:
            self._play(used, steps)
        except Exception:
            return True
        finally:
            used[-1].tidy()
        return False

    def test_b084_removal_during_reads_gives_right_bytes_or_a_miss(self, bench: Bench) -> None:
        def work(worker: int) -> None:
            dice = random.Random(worker)
            for _ in range(120):
                number = dice.randrange(4)
                match dice.randrange(3):
                    case 0:
                        result = bench.write([number], [8 * worker + number])[0]
                        assert result == DONE, result
                    case 1:
                        bench.storage.delete([bench.key(number)])
                    case 2:
                        bench.found_at(8 * worker + number, [number])

        at_once(work, WORKERS)

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

        at_once(work, WORKERS)

    def test_all_calls_at_once_on_the_same_keys(self, bench: Bench) -> None:
        """Batches overlap, keys repeat, pages come and go, and meanwhile somebody lists."""

        def work(worker: int) -> None:
            dice = random.Random(worker)
            slots = range(8 * worker, 8 * worker + 8)
            for turn in range(60):
                numbers = [dice.randrange(12) for _ in range(dice.randint(1, 8))]
                match dice.choice(["write", "write", "read", "read", "delete", "contains", "scan"]):
                    case "write":
                        assert set(bench.write(numbers, slots[: len(numbers)])) == {DONE}
                    case "read":
                        bench.found_at(slots[0], numbers)
                    case "delete":
                        bench.storage.delete(bench.keys(numbers))
                    case "contains":
                        assert len(bench.storage.contains(bench.keys(numbers))) == len(numbers)
                    case "scan" if self.claims(Capability.LISTS) and turn % 3 == 0:
                        bench.listed()

        at_once(work, WORKERS)
        bench.put(range(12))
        bench.gets(range(12))

    def test_b087_two_writers_of_a_key_never_give_a_mix(self, storage: Storage) -> None:
        bench = self.bench_of(storage, BIG, 3)
        key = bench.key(1)
        fills = (b"\x11" * BIG, b"\x22" * BIG)
        writing = [True, True]

        def write(worker: int) -> None:
            bench.arena.fill(worker, fills[worker])
            for turn in range(40):
                result = storage.write([key], bench.arena.views([worker]))[0]
                assert result == DONE, result
                if turn % 4 == 2 and self.claims(Capability.DELETES):
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

    def test_close_lets_calls_under_way_end(self) -> None:
        """Four threads call when it is closed: whatever they are answered, they come back and nothing crashes."""
        make = self.maker()
        salt = new_salt()

        def work(child: Child | None = None) -> None:
            bench = self.bench_of(make(), PAGE, SLOTS, salt)
            bench.put(range(8))
            closing = threading.Event()
            busy = threading.Barrier(5)

            def call(worker: int) -> None:
                slots = range(8 * worker, 8 * worker + 8)
                for turn in range(10_000):
                    if turn == 3:
                        busy.wait(self.patience_s)
                    if closing.is_set():
                        return
                    try:
                        results, pages = (
                            bench.read(range(8), slots) if worker % 2 else (bench.write(range(8), slots), [])
                        )
                    except Exception:
                        if not closing.is_set():
                            raise
                        continue
                    for number, result, page in zip(range(8), results, pages, strict=False):
                        assert result != DONE or page == bench.bytes_of(number), f"page {number} has other bytes"

            def close(_: int) -> None:
                busy.wait(self.patience_s)
                closing.set()  # from here on nobody begins a call, and some are under way
                bench.close()

            at_once(lambda worker: (call, call, call, call, close)[worker](worker), 5, 2 * self.patience_s)

        if self.forks:
            with forked(work) as child:
                child.finish()
        else:
            work()
        if OUTLIVING & self.provides:
            self.reopened(PAGE, SLOTS, salt).found(range(8))
