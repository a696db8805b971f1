"""A child process made by fork: for what has to outlive a process, or to be shared by two.

Fork, not spawn, so that a test's own closures run in the child; the part under test is made after the fork.
"""

from __future__ import annotations

import os
import resource
import selectors
import signal
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

LIMIT_S = 60.0


class Child:
    """The two ends of a child: `tell` is the child's, everything else is the parent's."""

    def __init__(self) -> None:
        self._ticks, self._tick = os.pipe()
        self._report, self._say = os.pipe()
        self._status: int | None = None
        self.pid = 0

    def tell(self) -> None:
        """Say that one more turn is done."""
        os.write(self._tick, b".")

    def hear(self, turns: int) -> None:
        """Wait until the child has told `turns` times."""
        end = time.monotonic() + LIMIT_S
        with selectors.DefaultSelector() as ticks:  # not select(), which knows descriptors below 1024 only
            ticks.register(self._ticks, selectors.EVENT_READ)
            while turns > 0:
                ready = ticks.select(max(0.0, end - time.monotonic()))
                got = len(os.read(self._ticks, turns)) if ready else 0
                if got == 0:
                    self.finish()
                    pytest.fail("the child process ended, or went silent, before it was expected to")
                turns -= got

    def alive(self) -> bool:
        """Whether it still runs."""
        if self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._status = status if pid else None
        return self._status is None

    def kill(self, after_s: float = 0.0) -> None:
        """End it without any warning."""
        time.sleep(after_s)
        if self.alive():
            os.kill(self.pid, signal.SIGKILL)
            _, self._status = os.waitpid(self.pid, 0)

    def finish(self) -> None:
        """Wait for its end; its failure is the caller's."""
        end = time.monotonic() + LIMIT_S
        while self.alive() and time.monotonic() < end:
            time.sleep(0.005)
        if self.alive():
            self.kill()
            pytest.fail(f"the child process did not end within {LIMIT_S:g} s")
        if self._status:
            story = os.read(self._report, 65536).decode().strip()
            last = next((line for line in reversed(story.splitlines()) if "Error: " in line), "it said nothing")
            pytest.fail(f"{last} (in a child process, status {self._status})\n{story}")

    def run(self, work: Callable[[Child], None]) -> None:
        """In the child: do the work and leave without any of the parent's clean-up."""
        status = 0
        try:
            os.close(self._ticks)
            os.close(self._report)
            work(self)
        except BaseException:
            status = 1
            os.write(self._say, traceback.format_exc()[-60000:].encode())
        finally:
            os._exit(status)

    def forget(self) -> None:
        """In the parent: end it if need be and close what is left."""
        self.kill()
        os.close(self._ticks)
        os.close(self._report)


@contextmanager
def forked(work: Callable[[Child], None]) -> Iterator[Child]:
    """Run `work(child)` in a child process; it is gone when the block ends."""
    child = Child()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork with threads: the child makes its own
        child.pid = os.fork()
    if child.pid == 0:
        child.run(work)
    os.close(child._tick)
    os.close(child._say)
    try:
        yield child
    finally:
        child.forget()


@contextmanager
def with_file_limit(nbytes: int) -> Iterator[None]:
    """Let no file of this process grow beyond `nbytes`; Python ignores the signal, so writes fail with EFBIG."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
