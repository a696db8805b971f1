"""Engines that are spread over other numbers of ranks read each other's pages, where those have the same shards."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from stepwell.assemble import Assembly
from stepwell.builtin.sim import SimConfig, answer
from stepwell.cache.keys import namespace, page_digests
from stepwell.config import Config
from stepwell.engine.local import LocalEngine
from stepwell.engine.messages import Output
from stepwell.plugins import load
from stepwell.schedule.request import Request
from stepwell.types import Sampling

PAGE = 4
PROMPT = np.arange(100, 133, dtype=np.int32).tobytes()
GOES_ON = Sampling(max_tokens=5, ignore_eos=True)


@dataclass
class Engine:
    """One that keeps its pages in a folder."""

    engine: LocalEngine
    sim: SimConfig

    def go_on(self) -> int:
        """The same for what continues the first prompt and its answer, nine pages and two tokens."""
        said = np.array(answer(self.sim, PROMPT, GOES_ON), np.int32).tobytes()
        return self.hits(PROMPT + said)

    def hits(self, prompt: bytes = PROMPT) -> int:
        """Tokens that came from storage for a prompt, whose answer is the right one."""
        space = namespace(self.engine.hello.namespace)
        digests = page_digests(space, prompt, PAGE)
        request = Request(rid="r", namespace=space, tokens=prompt, digests=digests, sampling=GOES_ON)
        outputs: queue.SimpleQueue[Output] = queue.SimpleQueue()
        self.engine.submit(request, outputs.put)
        tokens: list[int] = []
        cached = 0
        while True:
            output = outputs.get(timeout=20)
            tokens += output.tokens
            cached = max(cached, output.cached.storage if output.cached else 0)
            if output.finish is not None:
                break
        assert output.finish == "length", output
        assert tuple(tokens) == answer(self.sim, prompt, GOES_ON)
        return cached

    def settle(self) -> None:
        """Wait until all that is to be stored is, and all pages are accounted for."""
        until = time.monotonic() + 10
        while any((stats := self.engine.control("stats"))[name] for name in ("in_flight", "store_pages_in_flight")):
            assert time.monotonic() < until
            time.sleep(0.01)
        self.engine.control("audit")
        assert stats["audit_failures"] == 0
        assert stats["bytes_stored"] == stats["pages_stored"] * PAGE * self.sim.token_bytes, "of all ranks together"


@contextmanager
def engine(folder: Path, tp: int, shards: int | None) -> Iterator[Engine]:
    settings: dict[str, object] = {
        "runner.use": "sim",
        "runner.heads": 4,
        "runner.windows": [12],
        "cache.page_size": PAGE,
        "cache.device_pages": 24,
        "cache.host_pages": 24,
        "write.use": "write_through",
        "prefetch.use": "wait_complete",
        "prefetch.threshold": 4,
        "storage.use": "file",
        "storage.path": str(folder),
        "ranks.tp": tp,
    }
    if shards is not None:
        settings["cache.head_shards"] = shards
    assembly = Assembly(Config.load(None, {"HOME": "/nonexistent"}, extra=settings), load(only=("file",)))
    sim = assembly.resolved.chosen["runner"].settings
    assert isinstance(sim, SimConfig)
    running = LocalEngine(assembly.parts)
    try:
        yield Engine(running, sim)
    finally:
        running.close()


def stored(folder: Path, tp: int, shards: int | None) -> None:
    with engine(folder, tp, shards) as one:
        assert one.hits() == 0
        one.settle()


@pytest.mark.parametrize(("first", "others"), [(1, (2, 4)), (4, (1, 2))])
def test_b061_what_one_spread_stored_others_read(tmp_path: Path, first: int, others: tuple[int, ...]) -> None:
    stored(tmp_path, first, 4)
    for tp in others:
        with engine(tmp_path, tp, 4) as one:
            assert one.go_on() == 36, f"stored by {first} ranks, asked for by {tp}"
            one.settle()


def test_b059_other_shards_are_other_pages(tmp_path: Path) -> None:
    stored(tmp_path, 1, None)
    stored(tmp_path, 1, 4)
    stored(tmp_path, 2, None)
    with engine(tmp_path, 1, 2) as one:
        assert one.go_on() == 36, "one part a rank is what two parts are"
