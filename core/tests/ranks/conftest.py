"""Engines of several ranks on the sim runner, one of which may go wrong."""

from __future__ import annotations

import os
import queue
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from stepwell import Capability
from stepwell.assemble import Assembly
from stepwell.builtin.sim import answer
from stepwell.cache.keys import namespace, page_digests
from stepwell.config import Config
from stepwell.engine.local import LocalEngine
from stepwell.engine.messages import Output
from stepwell.engine.parts import Parts
from stepwell.engine.ranks.runner import RanksRunner
from stepwell.plugins import load
from stepwell.schedule.request import Request
from stepwell.types import Sampling

TIERS: Mapping[str, object] = {
    "cache.page_size": 4,
    "cache.device_pages": 40,
    "cache.host_pages": 96,
    "storage.use": "memory",
    "write.use": "write_through",
    "prefetch.use": "wait_complete",
    "prefetch.threshold": 4,
    "ranks.tp": 2,
    "ranks.timeout_s": 2,
}


class Spread:
    """An engine of two ranks, and what a test asks of it."""

    def __init__(self, **fault: object) -> None:
        import wild_runner  # type: ignore[import-not-found]  # found by ranks in the same place

        settings = fault.pop("settings", {})
        assert isinstance(settings, dict)
        provides = frozenset() if fault.pop("alone", False) else frozenset({Capability.RANKS})
        store = fault.pop("store", None)
        left_out = fault.pop("without", ())
        assert isinstance(left_out, tuple)
        tiers = {name: value for name, value in TIERS.items() if name.split(".")[0] not in left_out}
        config = Config.load(None, {"HOME": "/nonexistent"}, extra={"runner.use": "sim", **tiers, **settings})
        assembly = Assembly(config, load(only=()))
        chosen = assembly.resolved.chosen
        offer = replace(
            chosen["runner"].offer, make=partial(wild_runner.make, wild_runner.Fault(**fault)), provides=provides
        )
        chosen["runner"] = replace(chosen["runner"], offer=offer)
        if callable(store):
            chosen["storage"] = store(chosen["storage"])
        self.sim = chosen["runner"].settings
        self.parts: Parts | None = None
        self.engine = LocalEngine(partial(self._build, assembly))
        self._rids = count()

    def _build(self, assembly: Assembly) -> Parts:
        self.parts = assembly.parts()
        return self.parts

    @property
    def runner(self) -> RanksRunner:
        assert self.parts is not None and isinstance(self.parts.runner, RanksRunner)
        return self.parts.runner

    @property
    def pids(self) -> list[int]:
        if self.parts is not None and not isinstance(self.parts.runner, RanksRunner):
            return []
        return [int(link.where.removeprefix("pid ")) for link in self.runner.links]

    def start(self, prompt: Sequence[int], max_tokens: int = 8, **sampling: object) -> Running:
        tokens = np.array(prompt, np.int32).tobytes()
        hello = self.engine.hello
        space = namespace(hello.namespace)
        wanted = Sampling(max_tokens=max_tokens, ignore_eos=True, **sampling)  # type: ignore[arg-type]
        digests = page_digests(space, tokens, hello.page_size)
        request = Request(rid=f"r{next(self._rids)}", namespace=space, tokens=tokens, digests=digests, sampling=wanted)
        running = Running(self, request)
        self.engine.submit(request, running.outputs.put)
        return running

    def why(self, within_s: float = 10) -> str:
        """Why it ended."""
        until = time.monotonic() + within_s
        while not self.engine.why_down and time.monotonic() < until:
            time.sleep(0.01)
        assert self.engine.why_down, "it did not end"
        return self.engine.why_down


class Running:
    """A request on its way."""

    def __init__(self, spread: Spread, request: Request) -> None:
        self.spread, self.request = spread, request
        self.outputs: queue.SimpleQueue[Output] = queue.SimpleQueue()
        self.tokens: tuple[int, ...] = ()

    def end(self, timeout: float = 10) -> Output:
        while (output := self.outputs.get(timeout=timeout)).finish is None:
            self.tokens += tuple(output.tokens)
        self.tokens += tuple(output.tokens)
        return output

    def check(self) -> None:
        last = self.end()
        assert last.finish == "length", last
        assert self.tokens == answer(self.spread.sim, self.request.tokens, self.request.sampling)


def alive(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


@pytest.fixture
def spread(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Spread]]:
    monkeypatch.syspath_prepend(Path(__file__).parent / "pieces")
    made: list[Spread] = []

    def make(**fault: object) -> Spread:
        made.append(Spread(**fault))
        return made[-1]

    yield make
    for one in made:
        one.engine.close()
        assert not any(map(alive, one.pids)), "a rank was left behind"
