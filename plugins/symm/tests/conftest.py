"""Ranks as threads of one process, whose kernels run in Triton's interpreter, a kernel at a time."""

from __future__ import annotations

import importlib.util
import os
import threading
import time
from contextlib import nullcontext

import pytest
import torch


def _count_by_scalars() -> None:
    """Let the interpreter's `range` take what a kernel computes: NumPy 2.4 turns no array of one number into an int."""
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patched(tensor, scope):
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    interpreter._patch_lang_tensor = patched


def _patch_once() -> None:
    """Let a launch put the interpreter in the place of `triton.language` once, and not at each call of a function."""
    from triton.runtime import interpreter

    patch, done = interpreter._patch_lang, set()

    def patched(fn):
        seen = {name for name in ("tl", "core") if name in fn.__globals__}
        if seen <= done:
            return None  # a function's own call, of which the interpreter restores nothing
        scope = patch(fn)
        first, restore = not done, scope.restore
        done.update(seen)

        def restored():
            if first:
                done.clear()
            restore()

        scope.restore = restored
        return scope

    interpreter._patch_lang = patched


if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
    if importlib.util.find_spec("triton"):
        _count_by_scalars()
        _patch_once()


class Table:
    """What the ranks share: their memory, and in what order their kernels run."""

    GRACE_S = 1.0

    def __init__(self, ranks: int) -> None:
        self.ranks, self.parts, self.done = ranks, {}, [0] * ranks
        self.threads = [threading.Thread()] * ranks  # of which none runs yet
        self.lock = threading.Lock()  # the interpreter puts itself in the place of `triton.language`, for all threads
        self.changed = threading.Condition()
        self.barrier = threading.Barrier(ranks, timeout=20)

    def run(self, rank, kernel):
        """Run a rank's next kernel once all have run those before it, as far as any waits for another."""
        self.threads[rank] = threading.current_thread()
        away, since = False, time.monotonic()
        with self.changed:
            while not away and min(self.done) < self.done[rank]:
                self.changed.wait(0.05)
                if any(self.threads[each].is_alive() for each in self._behind(rank)):
                    since = time.monotonic()
                away = time.monotonic() - since > self.GRACE_S
        with self.lock:
            kernel()
        with self.changed:
            self.done[rank] += 1
            self.changed.notify_all()

    def _behind(self, rank):
        return [each for each in range(self.ranks) if self.done[each] < self.done[rank]]

    def share(self, rank: int, size: int):
        from stepwell_symm.shared import Shared

        self.parts[rank] = torch.zeros(size, dtype=torch.uint8)
        self.barrier.wait()
        return Shared(self.parts[rank], tuple(self.parts[each].data_ptr() for each in range(self.ranks)))


class Now:
    """A mark in a stream that has no length."""

    def record(self) -> None:
        pass

    wait = synchronize = record


class PlainLane:
    """Every kernel ends before the call returns."""

    device, timed = torch.device("cpu"), False

    def __init__(self, table: Table, rank: int) -> None:
        self.table, self.rank, self.launches = table, rank, []

    def run(self, kernel, programs, *args, warps, **meta):
        self.launches.append((kernel, programs, args, meta))
        self.table.run(self.rank, lambda: kernel[(programs,)](*args, **meta))

    def aside(self):
        return nullcontext()

    def mark(self):
        return Now()

    def pinned(self, shape, dtype):
        return torch.zeros(shape, dtype=dtype)

    def quiet(self, lost):
        lost[:1].fill_(1)


def group(offer, config, ranks, traffic=None):
    """A dispatcher a rank, opened where there is traffic."""
    from functools import partial

    from stepwell_testkit.together import at_once

    table = Table(ranks)
    made = [offer(config, rank, ranks, PlainLane(table, rank), partial(table.share, rank)) for rank in range(ranks)]
    if traffic is not None:
        at_once(lambda rank: made[rank].open(traffic), ranks, 60)
    return made


@pytest.fixture
def spread():
    """See `group`."""
    return group
