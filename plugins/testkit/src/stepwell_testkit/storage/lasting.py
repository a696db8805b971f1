"""PERSISTENT: pages outlive a close, a process, and the kill of one that writes."""

from __future__ import annotations

import time
from itertools import count

from stepwell import DONE, Capability
from stepwell_testkit.bench import Bench, new_salt
from stepwell_testkit.process import Child, forked
from stepwell_testkit.storage.base import BIG, PAGE, SLOTS, StorageBase


class Lasting(StorageBase):
    """What is there after an end."""

    def test_persistent_holds_over_a_close(self, bench: Bench) -> None:
        self.need(Capability.PERSISTENT)
        deletes = self.claims(Capability.DELETES)
        bench.put(range(16))
        if deletes:
            bench.storage.delete(bench.keys([3]))
        bench.close()
        again = self.reopened(PAGE, SLOTS, bench.salt)
        again.gets([number for number in range(16) if number != 3])
        if deletes:
            again.lacks([3])

    def test_persistent_holds_over_the_end_of_a_process(self) -> None:
        self.need(Capability.PERSISTENT)
        self.need_forks()
        make = self.maker()
        salt = new_salt()

        def work(child: Child) -> None:
            bench = self.bench_of(make(), PAGE, 16, salt)
            bench.put(range(16))
            bench.close()

        with forked(work) as child:
            child.finish()
        self.reopened(PAGE, 16, salt).gets(range(16))

    def test_persistent_holds_over_a_kill(self) -> None:
        """Killed while it writes: it opens again, and each page is whole or missing."""
        self.need(Capability.PERSISTENT)
        self.need_forks()
        make = self.maker()
        deletes = self.claims(Capability.DELETES)

        def batch(turn: int) -> range:
            # Pages that cannot be deleted are written once; the third batch is under way when the kill comes.
            return range(8) if deletes else range(8 * turn, 8 * turn + 8)

        def work(salt: str, child: Child) -> None:
            bench = self.bench_of(make(), BIG, 8, salt)
            for turn in count():
                bench.put(batch(turn))
                if deletes:
                    bench.storage.delete(bench.keys(batch(turn)))
                child.tell()

        for part in (0.2, 0.4, 0.5, 0.6, 0.8):
            salt = new_salt()
            with forked(lambda child, salt=salt: work(salt, child)) as child:  # type: ignore[misc]
                child.hear(1)
                start = time.monotonic()
                child.hear(1)
                child.kill(after_s=part * (time.monotonic() - start))
            bench = self.reopened(BIG, 8, salt)
            results, pages = bench.read(batch(2))
            # A list of numbers, since pytest would spend minutes on the difference of two large pages.
            wrong = [at for at in range(8) if results[at] == DONE and pages[at] != bench.bytes_of(batch(2)[at])]
            assert not wrong, f"pages {wrong} are torn"
            bench.put(batch(2))
            bench.gets(batch(2))
            bench.tidy()
            bench.close()
