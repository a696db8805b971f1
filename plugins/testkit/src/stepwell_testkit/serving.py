"""A serving engine under steady load while its storage breaks: whether it stalls, errs, and recovers.

The whole engine runs on the `sim` runner, whose answers are known without any cache, so that each answer can be judged.
One request decodes all the time without anything to do with storage: the time between two of its tokens is a turn of
the serving loop, and whatever holds the loop up shows there. Others ask for prompts with shared prefixes, more of them
than device and host have room for, so that storage is read and written without a pause.
"""

from __future__ import annotations

import itertools
import queue
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from math import ceil

import numpy as np

from stepwell import Sampling
from stepwell.assemble import Assembly
from stepwell.builtin.sim import SimConfig, answer
from stepwell.cache.keys import namespace, page_digests
from stepwell.config import Config, environment
from stepwell.engine.local import LocalEngine
from stepwell.engine.messages import Output
from stepwell.plugins import Registry
from stepwell.schedule.request import Request

PAGE_TOKENS = 16
PREFIX_PAGES = 16
PREFIXES = 24
"""Shared prefixes: 384 pages of them, where device and host together hold 256."""
ASKERS = 4
THINK_S = 0.01
"""Between two questions of one asker: enough load to use storage all the time, too little to need a whole core."""
PATIENCE_S = 60.0
"""For one answer: an engine that takes longer has hung."""

WAKES = 3
"""A turn of the loop waits for its processor about so many times: a timer, the loop, who reads the answer."""

METRONOME = """
import time
while True:
    late = []
    while len(late) < 50:
        began = time.monotonic()
        time.sleep(0.002)
        late.append(time.monotonic() - began - 0.002)
    print(*late, flush=True)
"""
"""How late a process is that wants nothing but to run for an instant, again and again."""

SERVING: Mapping[str, object] = {
    "runner.use": "sim",
    "runner.pace": 0.002,
    "runner.context": 2048,
    "cache.page_size": PAGE_TOKENS,
    "cache.device_pages": 192,
    "cache.host_pages": 64,
    "engine.max_running": 8,
    "engine.drain_s": 0.0,
    "write.use": "write_through",
    "prefetch.threshold": PAGE_TOKENS,
    "prefetch.base_s": 0.25,
    "tiers.timeout_s": 1.0,
    "tiers.breaker_s": 0.25,
}
"""The engine's settings; `under_fault` takes others, which win."""


@dataclass(frozen=True)
class Phase:
    """What was seen for a while."""

    turns: tuple[float, ...]
    """Seconds of each turn of the serving loop."""
    answered: int
    hits: int
    """Answers with pages that came from storage."""
    noise: tuple[float, ...] = ()
    """Seconds by which an idle process beside the engine was late whenever it wanted to run: the machine's share."""

    @property
    def p50(self) -> float:
        """The median turn."""
        return _percentile(self.turns, 0.5)

    @property
    def p99(self) -> float:
        """The turn that 99 of 100 do not exceed."""
        return _percentile(self.turns, 0.99)

    @property
    def longest(self) -> float:
        """The longest turn."""
        return max(self.turns, default=float("inf"))


@dataclass(frozen=True)
class Report:
    """What a fault did to an engine."""

    before: Phase
    during: Phase
    answers_equal: bool
    """Every answer is the one that the model gives without a cache."""
    wrong: tuple[str, ...]
    """What was wrong with those that were not."""
    recovered: bool
    """Pages came from storage again after `mend_it` had returned."""
    recovered_after_s: float
    """How long after; infinite where they never did."""
    stats: Mapping[str, float] = field(default_factory=dict)
    """The engine's counters at the end."""

    @property
    def p99_before(self) -> float:
        """Seconds."""
        return self.before.p99

    @property
    def p99_during(self) -> float:
        """Seconds."""
        return self.during.p99

    def check(self, *, factor: float = 2.0, floor_s: float = 0.02, longest_s: float = 0.5) -> None:
        """AssertionError, with figures, where the fault was more than a loss of hits.

        Turns during the fault: 99 of 100 within `factor` of what is normal, or within `floor_s`; each within
        `longest_s`. Where the machine is so busy that an idle process waits longer for its turn, that counts as normal.
        """
        assert self.answers_equal, f"wrong answers: {self.wrong[:3]}"
        noise = self.during.noise
        limit = max(factor * self.p99_before, floor_s, WAKES * (_percentile(noise, 0.99) if noise else 0.0))
        assert self.p99_during <= limit, f"the loop slowed down: {self}"
        limit = max(longest_s, self.before.longest, WAKES * max(noise, default=0.0))
        assert self.during.longest <= limit, f"the loop stood still: {self}"
        assert self.during.answered > 0, f"nothing was answered during the fault: {self}"
        assert self.recovered, f"storage gave no page again after the fault: {self}"

    def __str__(self) -> str:
        parts = [
            f"{name} p50 {phase.p50 * 1e3:.1f} p99 {phase.p99 * 1e3:.1f} max {phase.longest * 1e3:.1f} ms, "
            f"{phase.answered} answers, {phase.hits} hits, machine p99 {_percentile(phase.noise, 0.99) * 1e3:.1f} ms"
            for name, phase in (("before:", self.before), ("during:", self.during))
        ]
        return f"{'; '.join(parts)}; recovered after {self.recovered_after_s:.2f} s; wrong: {len(self.wrong)}"


def under_fault(
    storage: Mapping[str, object],
    break_it: Callable[[], object],
    mend_it: Callable[[], object],
    *,
    settings: Mapping[str, object] | None = None,
    registry: Registry | None = None,
    before_s: float = 2.0,
    during_s: float = 4.0,
    recover_s: float = 20.0,
) -> Report:
    """Serve with `[storage]` as in the table `storage`; call `break_it`, serve on; call `mend_it`, serve until it hits.

    `break_it` and `mend_it` run on the caller's thread, and the phase goes on for `during_s` after `break_it` has
    returned. AssertionError where storage is of no use even before the fault: nothing would be tested then.
    """
    with _serving(storage, settings or {}, registry) as load:
        load.wait_for_hits(recover_s, "before the fault")
        before = load.watch(before_s)
        assert before.hits, "no page came from storage before the fault"
        load.begin()
        break_it()
        during = load.watch(during_s, fresh=False)
        mend_it()
        since = time.monotonic()
        with suppress(AssertionError):
            load.wait_for_hits(recover_s, "after the fault")
        took = time.monotonic() - since if load.recent_hits else float("inf")
        wrong = load.stop()
        told = load.engine.control("stats")
        stats = {name: float(value) for name, value in told.items() if isinstance(value, int | float)}
        load.engine.control("audit")
    return Report(before, during, not wrong, tuple(wrong), took < float("inf"), took, stats)


@contextmanager
def _serving(
    storage: Mapping[str, object], settings: Mapping[str, object], registry: Registry | None
) -> Iterator[Load]:
    with tempfile.TemporaryDirectory(prefix="stepwell-serving-") as folder:
        extra = {**SERVING, "engine.state_dir": folder, **settings, "storage": storage}
        config = Config.load(None, environment(), extra=extra)
        assembly = Assembly(config, registry or config.load_plugins())
        sim: SimConfig = assembly.resolved.chosen["runner"].settings
        engine = LocalEngine(assembly.parts)
        load = Load(engine, sim)
        try:
            yield load
        finally:
            load.stop()
            engine.close()


class Load:
    """Requests without a pause until `stop`, and what came of them."""

    def __init__(self, engine: LocalEngine, sim: SimConfig) -> None:
        self.engine, self._sim = engine, sim
        self._space = namespace(dict(engine.hello.namespace))
        self._prefixes = [_tokens(seed, PREFIX_PAGES * PAGE_TOKENS) for seed in range(PREFIXES)]
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._turns: list[float] = []
        self._answered = self._hits = 0
        self._wrong: list[str] = []
        self._noise: list[float] = []
        self._beat_at: float | None = None
        self._metronome = subprocess.Popen([sys.executable, "-c", METRONOME], stdout=subprocess.PIPE, text=True)
        threading.Thread(target=self._hear, daemon=True).start()
        self._threads = [threading.Thread(target=self._ask_on, args=(at,), daemon=True) for at in range(ASKERS)]
        self._threads.append(threading.Thread(target=self._beat, daemon=True))
        for thread in self._threads:
            thread.start()

    @property
    def recent_hits(self) -> int:
        """Since `begin`."""
        with self._lock:
            return self._hits

    def begin(self) -> None:
        """Forget what was seen so far, but not what was wrong."""
        with self._lock:
            self._turns, self._noise, self._answered, self._hits = [], [], 0, 0

    def watch(self, seconds: float, *, fresh: bool = True) -> Phase:
        """What is seen in so many seconds, and since the last `begin` where not `fresh`."""
        if fresh:
            self.begin()
        time.sleep(seconds)
        with self._lock:
            under_way = [] if self._beat_at is None else [time.monotonic() - self._beat_at]
            return Phase((*self._turns, *under_way), self._answered, self._hits, tuple(self._noise))

    def wait_for_hits(self, within_s: float, when: str, least: int = 8) -> None:
        """Until pages came from storage; AssertionError where they do not."""
        self.begin()
        deadline = time.monotonic() + within_s
        while self.recent_hits < least:
            assert time.monotonic() < deadline, f"{self.recent_hits} hits in storage within {within_s:g} s {when}"
            time.sleep(0.01)

    def stop(self) -> list[str]:
        """End the load; what was wrong."""
        self._over.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)
        self._metronome.kill()
        self._metronome.wait()
        return self._wrong

    def _hear(self) -> None:
        """What the process beside says; it measures by itself, so it does not matter when it is heard."""
        assert self._metronome.stdout is not None
        with self._metronome.stdout as lines:
            for line in lines:
                with self._lock:
                    self._noise += map(float, line.split())

    def _ask_on(self, which: int) -> None:
        order = random.Random(which)
        while not self._over.is_set():
            prefix = self._prefixes[order.randrange(PREFIXES)]
            self._ask(prefix + _tokens(1000 + next(self._numbers), 8), 4)
            self._over.wait(THINK_S)

    def _ask(self, tokens: Sequence[int], max_tokens: int) -> None:
        request = self._request(tokens, max_tokens)
        got = [output for _, output in self._outputs(request)]
        last = got[-1] if got else None
        said = tuple(token for output in got for token in output.tokens)
        wrong = ""
        if last is None or last.finish != "length":
            wrong = f"{request.rid} ended as {last}"
        elif said != answer(self._sim, request.tokens, request.sampling):
            wrong = f"{request.rid} answered {said} with {last.cached}"
        with self._lock:
            self._answered += 1
            self._hits += bool(last and last.cached.storage)
            if wrong:
                self._wrong.append(wrong)

    def _beat(self) -> None:
        """One answer after the other, each as long as the context allows, and the time between tokens."""
        while not self._over.is_set():
            request = self._request(_tokens(2000 + next(self._numbers), 8), 1500)
            for now, output in self._outputs(request):
                with self._lock:
                    if self._beat_at is not None:
                        self._turns.append(now - self._beat_at)
                    self._beat_at = now if output.finish is None else None
                if self._over.is_set():
                    self.engine.abort(request.rid)

    def _outputs(self, request: Request) -> Iterator[tuple[float, Output]]:
        """What an engine says to a request, and when; where it falls silent, that is what was wrong."""
        outputs: queue.SimpleQueue[tuple[float, Output]] = queue.SimpleQueue()
        self.engine.submit(request, lambda output: outputs.put((time.monotonic(), output)))
        with suppress(queue.Empty):
            while True:
                said = outputs.get(timeout=PATIENCE_S)
                yield said
                if said[1].finish is not None:
                    return
        with self._lock:
            self._wrong.append(f"{request.rid} was not answered within {PATIENCE_S:g} s")

    def _request(self, prompt: Sequence[int], max_tokens: int) -> Request:
        tokens = np.array(prompt, np.int32).tobytes()
        digests = page_digests(self._space, tokens, self.engine.hello.page_size)
        sampling = Sampling(max_tokens=max_tokens, ignore_eos=True)
        rid = f"load-{next(self._numbers)}"
        return Request(rid=rid, namespace=self._space, tokens=tokens, digests=digests, sampling=sampling)


def _tokens(seed: int, count: int) -> list[int]:
    dice = random.Random(seed)
    return [dice.randrange(256) for _ in range(count)]


def _percentile(values: Sequence[float], share: float) -> float:
    """The value that `share` of all do not exceed; infinite where there is none."""
    return sorted(values)[ceil(share * len(values)) - 1] if values else float("inf")
