"""A live engine on the sim runner, whose answers are known without it."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count

import numpy as np
import pytest

from stepwell.abc.storage import Storage
from stepwell.assemble import Assembly
from stepwell.builtin.sim import SimConfig, answer
from stepwell.cache.keys import namespace, page_digests
from stepwell.config import Config
from stepwell.engine.local import LocalEngine
from stepwell.engine.messages import Output
from stepwell.engine.parts import Parts
from stepwell.plugins import load
from stepwell.schedule.request import Request
from stepwell.types import Sampling

TIERS: Mapping[str, object] = {
    "cache.page_size": 4,
    "cache.device_pages": 48,
    "cache.host_pages": 96,
    "storage.use": "memory",
    "write.use": "write_through",
    "prefetch.use": "wait_complete",
    "prefetch.threshold": 4,
}
"""All three tiers, small, with everything copied down at once and waited for."""


class Live:
    """An engine, and what a test does to it."""

    def __init__(
        self, settings: Mapping[str, object] = TIERS, change: Callable[[Parts], Parts] = lambda parts: parts
    ) -> None:
        config = Config.load(None, {"HOME": "/nonexistent"}, extra={"runner.use": "sim", **settings})
        assembly = Assembly(config, load(only=()))
        self.sim: SimConfig = assembly.resolved.chosen["runner"].settings
        self.parts: Parts | None = None

        def build() -> Parts:
            self.parts = change(assembly.parts())
            return self.parts

        self.engine = LocalEngine(build)
        self._rids = count()

    def request(self, prompt: Sequence[int], max_tokens: int = 8, **fields: object) -> Request:
        tokens = np.array(prompt, np.int32).tobytes()
        hello = self.engine.hello
        space = namespace({**hello.namespace, "salt": str(fields.pop("salt", None))})
        digests = page_digests(space, tokens, hello.page_size) if hello.storage else b""
        sampling = Sampling(max_tokens=max_tokens, ignore_eos=True)
        rid = f"r{next(self._rids)}"
        return Request(rid=rid, namespace=space, tokens=tokens, digests=digests, sampling=sampling, **fields)  # type: ignore[arg-type]

    def start(self, request: Request) -> Running:
        running = Running(self, request)
        self.engine.submit(request, running.outputs.put)
        return running

    def ask(self, prompt: Sequence[int], max_tokens: int = 8, **fields: object) -> Running:
        """Answer a prompt, and check the answer."""
        running = self.start(self.request(prompt, max_tokens, **fields))
        running.end()
        running.check()
        return running

    def stats(self) -> dict[str, float]:
        stats = self.engine.control("stats")
        return {name: float(value) for name, value in stats.items() if isinstance(value, int | float)}

    def settle(self, condition: Callable[[dict[str, float]], bool] = lambda stats: True, within_s: float = 10) -> None:
        """Wait until nothing moves, and something holds."""
        deadline = time.monotonic() + within_s
        while True:
            stats = self.stats()
            still = not (stats["running"] or stats["waiting"] or stats["in_flight"] or stats["store_pages_in_flight"])
            if still and condition(stats):
                return
            assert time.monotonic() < deadline, f"it did not come to pass: {stats}"
            time.sleep(0.01)

    def close(self) -> None:
        self.engine.close()


class Running:
    """A request on its way."""

    def __init__(self, live: Live, request: Request) -> None:
        self.live, self.request, self.rid = live, request, request.rid
        self.outputs: queue.SimpleQueue[Output] = queue.SimpleQueue()
        self.tokens: tuple[int, ...] = ()
        self.last: Output | None = None

    def next(self, timeout: float = 20) -> Output:
        output = self.outputs.get(timeout=timeout)
        assert self.last is None, "something came after the end"
        self.tokens += tuple(output.tokens)
        if output.finish is not None:
            self.last = output
        return output

    def end(self, timeout: float = 20) -> Output:
        while self.last is None:
            self.next(timeout)
        return self.last

    def check(self) -> None:
        assert self.last is not None and self.last.finish == "length", self.last
        assert self.tokens == answer(self.live.sim, self.request.tokens, self.request.sampling)


@pytest.fixture
def lives() -> Iterator[Callable[..., Live]]:
    made: list[Live] = []

    def make(*args: object, **kwargs: object) -> Live:
        made.append(Live(*args, **kwargs))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for live in made:
        live.close()


@pytest.fixture
def with_storage() -> Callable[[Storage], Callable[[Parts], Parts]]:
    """Another storage in place of the one that the config chose."""
    return lambda storage: lambda parts: replace(parts, storage=storage)
