"""SHARED: several instances, and several processes, on the same pages."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable

from stepwell import DONE, Capability
from stepwell_testkit.bench import Bench, new_salt
from stepwell_testkit.process import LIMIT_S, Child, forked
from stepwell_testkit.storage.base import BIG, PAGE, SLOTS, StorageBase


class Sharing(StorageBase):
    """What one sees of another's doing."""

    def test_shared_holds(self, bench: Bench) -> None:
        self.need(Capability.SHARED)
        other = self.reopened(PAGE, SLOTS, bench.salt)
        bench.put(range(8))
        other.gets(range(8))
        other.put(range(8, 16))
        bench.gets(range(16))
        claims = bench.storage.contains(bench.keys(range(16)))
        assert sum(map(bool, claims)) >= 14, f"contains was right for {sum(map(bool, claims))} of 16 shared pages"
        other.close()
        bench.gets([1, 10])

    def test_shared_deletion_holds(self, bench: Bench) -> None:
        self.need(Capability.SHARED)
        self.need(Capability.DELETES)
        other = self.reopened(PAGE, SLOTS, bench.salt)
        bench.put(range(8))
        other.gets(range(8))
        other.storage.delete(other.keys([2, 5]))
        bench.lacks([2, 5])
        other.lacks([2, 5])
        bench.put([5])
        other.gets([5, 1])

    def test_shared_holds_between_processes(self) -> None:
        """Two processes write one key with different bytes while a third reads: one or the other, never a mix."""
        self.need(Capability.SHARED)
        self.need_forks()
        make = self.maker()
        deletes = self.claims(Capability.DELETES)
        salt = new_salt()
        fills = [bytes([fill]) * BIG for fill in (0x11, 0x22)]
        start = multiprocessing.get_context("fork").Barrier(3, timeout=LIMIT_S)

        def writer(fill: bytes) -> Callable[[Child], None]:
            def work(child: Child) -> None:
                bench = self.bench_of(make(), BIG, 1, salt)
                start.wait()
                for turn in range(60):
                    bench.arena.fill(0, fill)
                    result = bench.storage.write([bench.key(1)], bench.arena.views([0]))[0]
                    assert result == DONE, result
                    if deletes and turn % 5 == 4:
                        bench.storage.delete([bench.key(1)])
                    time.sleep(0.001)  # lets the other one in, whatever else the machine does
                bench.put([2])
                bench.close()

            return work

        with forked(writer(fills[0])) as one, forked(writer(fills[1])) as two:
            bench = self.reopened(BIG, 1, salt)
            start.wait()
            while one.alive() or two.alive():
                if bench.storage.read([bench.key(1)], bench.arena.views([0]))[0] == DONE:
                    assert bench.arena.page(0) in fills, "a page mixes the bytes of two processes"
            one.finish()
            two.finish()
        bench.gets([2])
