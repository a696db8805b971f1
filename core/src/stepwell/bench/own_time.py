"""What of a page's time a storage spends in Stepwell's own Python: `stepwell bench storage --profile`.

Processor time of all threads is told apart by whose code runs: frames of Stepwell's modules and of the plugin, C
functions that those call, and everything else (client libraries, the standard library). What the profiler itself takes
is measured on functions that do nothing, and taken off. Python is slower while it is watched, so all is scaled to what
it takes together without a profiler; since C hardly is, too much of that falls to Python, never too little.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from statistics import median
from time import perf_counter, process_time, thread_time_ns
from types import FrameType
from typing import TypeVar

import numpy as np

from stepwell.bench.moves import all_done
from stepwell.cache.arena import Arena
from stepwell.cli.storage_open import Store
from stepwell.types import DIGEST_BYTES, TAG_BYTES, PageResult, PageViews

T = TypeVar("T")
ROUNDS = 3
CALIBRATED = 20_000
OWN, OTHER = "own", "other"
NAMED = 4
"""C functions that are named, those that take longest."""


@dataclass(frozen=True, slots=True)
class OpTime:
    """One operation on a batch of small pages, in microseconds a page."""

    op: str
    pages: int
    us: float
    """From the call to its return, without a profiler."""
    own_us: float
    """Processor time in Stepwell's own frames."""
    c_us: float
    """Processor time in C functions that they call, those of a client library among them."""
    other_us: float
    """Processor time in everything else: client libraries in Python, the standard library."""
    own_share: float
    """`own_us` of `us`."""
    c_calls: tuple[tuple[str, float], ...]
    """The longest of those C functions."""

    def __str__(self) -> str:
        text = f"{self.op}  {self.pages} pages of 4 KiB in a call  {self.us:.2f} us a page"
        calls = ", ".join(f"{name} {us:.2f}" for name, us in self.c_calls)
        own = f"own Python {self.own_us:.2f} ({self.own_share:.0%})"
        return f"{text}: {own}, C called from it {self.c_us:.2f} ({calls}), others {self.other_us:.2f}"


class Spent:
    """Processor time and intervals of one thread, by whose code ran. The thread's profile function."""

    def __init__(self, own: Callable[[FrameType], bool]) -> None:
        self.ns: Counter[str] = Counter()
        self.intervals: Counter[str] = Counter()
        self._own = own
        self._stack: list[str] = []
        self._last = thread_time_ns()

    def __call__(self, frame: FrameType, event: str, arg: object) -> None:
        now = thread_time_ns()
        stack = self._stack
        top = stack[-1] if stack else OTHER
        self.ns[top] += now - self._last
        self.intervals[top] += 1
        if event == "call":
            stack.append(OWN if self._own(frame) else OTHER)
        elif event == "c_call":
            stack.append(_name(arg) if top == OWN else OTHER)
        elif stack:
            stack.pop()
        self._last = thread_time_ns()


class Profiler:
    """Tells apart what threads spend: this one, and those that begin while it is on."""

    def __init__(self, plugin: str) -> None:
        """`plugin` is the package that counts as own beside Stepwell's."""
        self._plugin = plugin
        self._known: dict[str, bool] = {}
        self._threads: list[Spent] = []
        self._event_ns = _event_ns()

    @contextmanager
    def on(self) -> Iterator[None]:
        """Watch threads that begin, for as long as they live."""
        threading.setprofile(self._begin)
        try:
            yield
        finally:
            threading.setprofile(None)

    def nanoseconds(self, call: Callable[[], object]) -> dict[str, float]:
        """What a call takes by whose code runs: OWN, OTHER, or the name of a C function that own code calls."""
        before = self._sums()
        mine = Spent(self._own)
        self._threads.append(mine)
        sys.setprofile(mine)
        try:
            call()
        finally:
            sys.setprofile(None)
        return {name: max(0.0, ns - before.get(name, 0.0)) for name, ns in self._sums().items()}

    def _begin(self, frame: FrameType, event: str, arg: object) -> None:
        """The first event of a new thread gives it a count of its own."""
        spent = Spent(self._own)
        self._threads.append(spent)
        sys.setprofile(spent)

    def _sums(self) -> dict[str, float]:
        sums: Counter[str] = Counter()
        taken: Counter[str] = Counter()
        for spent in list(self._threads):
            sums.update(dict(spent.ns))
            taken.update(dict(spent.intervals))
        return {name: ns - taken[name] * self._event_ns for name, ns in sums.items()}

    def _own(self, frame: FrameType) -> bool:
        module = str(frame.f_globals.get("__name__"))
        known = self._known.get(module)
        if known is None:
            package = module.partition(".")[0]
            known = package == "stepwell" or package.startswith("stepwell_") or package == self._plugin
            self._known[module] = known
        return known


def measure_own(opened: Callable[[], AbstractContextManager[Store]], arena: Arena) -> list[OpTime]:
    """Times of one call with all pages of the arena. One storage is timed, and another one profiled."""
    with opened() as store:
        times = _rounds(store, arena, _microseconds)
        plugin = store.package
    profiler = Profiler(plugin)
    with profiler.on(), opened() as store:
        spent = _rounds(store, arena, profiler.nanoseconds)
    pages = len(_views(arena))
    return [_op_time(op, pages, times[op], spent[op]) for op in ("contains", "write", "read")]


def _rounds(store: Store, arena: Arena, of: Callable[[Callable[[], object]], T]) -> dict[str, list[T]]:
    """What `of` says of each call, by operation; the first round is not counted."""
    views = _views(arena)
    found: dict[str, list[T]] = {"write": [], "contains": [], "read": []}
    for _ in range(ROUNDS + 1):
        keys = [os.urandom(DIGEST_BYTES + TAG_BYTES) for _ in range(len(views))]
        answers: list[Sequence[PageResult]] = []
        try:
            found["write"].append(of(lambda: answers.append(store.write(keys, views))))  # noqa: B023 - called at once
            found["contains"].append(of(lambda: store.contains(keys)))  # noqa: B023
            found["read"].append(of(lambda: answers.append(store.read(keys, views))))  # noqa: B023
        finally:
            store.delete(keys)
        for results in answers:
            all_done("move", results)
    return {op: some[1:] for op, some in found.items()}


def _op_time(op: str, pages: int, times: Sequence[tuple[float, float]], spent: Sequence[dict[str, float]]) -> OpTime:
    names = {name for one in spent for name in one}
    us = {name: median(one.get(name, 0.0) for one in spent) / pages / 1e3 for name in names}
    wall, processor = (median(some) / pages for some in zip(*times, strict=True))
    own, other = us.pop(OWN, 0.0), us.pop(OTHER, 0.0)
    in_c = sum(us.values())
    scale = min(1.0, processor / max(own + in_c + other, 1e-9))
    own *= scale
    longest = sorted(us.items(), key=lambda item: -item[1])[:NAMED]
    return OpTime(
        op=op,
        pages=pages,
        us=round(wall, 3),
        own_us=round(own, 3),
        c_us=round(in_c * scale, 3),
        other_us=round(other * scale, 3),
        own_share=round(own / wall, 3),
        c_calls=tuple((name, round(value * scale, 3)) for name, value in longest),
    )


def _views(arena: Arena) -> PageViews:
    _, page_bytes, _ = arena.slots(0)
    return arena.views(0, np.arange(arena.nbytes // page_bytes, dtype=np.int32))


def _microseconds(call: Callable[[], object]) -> tuple[float, float]:
    """What a call takes: on the clock, and of processor time in all threads."""
    start, processor = perf_counter(), process_time()
    call()
    return (perf_counter() - start) * 1e6, (process_time() - processor) * 1e6


def _event_ns() -> float:
    """What the profiler itself adds to each interval between two events, in nanoseconds of processor time."""
    spent = Spent(lambda frame: True)
    calls = range(CALIBRATED)
    sys.setprofile(spent)
    for _ in calls:
        _nothing()
    sys.setprofile(None)
    return spent.ns[OWN] / spent.intervals[OWN]


def _nothing() -> None:
    """Its call and return are all that it takes."""


def _name(function: object) -> str:
    name = getattr(function, "__qualname__", None) or repr(function)
    return str(name)
