"""What a page costs beyond NIXL: time of a call less the time inside the client, for a batch of 4,096 pages."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from stepwell import DONE
from stepwell_nixl import make
from stepwell_nixl.client import Agent
from stepwell_nixl.config import NixlConfig
from stepwell_nixl.lanes import FileLane
from stepwell_testkit import KitContext
from stepwell_testkit.arena import KitArena

PAGES = 4096
MOST_US = 2.0
CALLS = (
    "get_xfer_descs",
    "initialize_xfer",
    "transfer",
    "check_xfer_state",
    "release_xfer_handle",
    "register_memory",
)


class Timed:
    """An agent that adds up the time inside it; the waiting between two looks at a transfer is its, too."""

    def __init__(self, agent: Agent, spent: list[float]) -> None:
        self._agent, self._spent = agent, spent
        self.name = agent.name
        self._looked = 0.0

    def __getattr__(self, name: str) -> Callable[..., object]:
        inner = getattr(self._agent, name)
        if name not in CALLS:
            return inner

        def call(*args: object) -> object:
            start = time.perf_counter()
            if name == "check_xfer_state" and self._looked:
                start = self._looked
            result = inner(*args)
            end = time.perf_counter()
            self._looked = end if result == "PROC" and name == "check_xfer_state" else 0.0
            self._spent[0] += end - start
            return result

        return call


def test_a_page_costs_under_two_microseconds_of_python(tmp_path: Path, monkeypatch: object) -> None:
    spent = [0.0]
    storage = make(NixlConfig(path=tmp_path, gib=1), KitContext(tmp_path))
    arena = KitArena(4096, PAGES)
    storage.attach(arena)
    with storage._attached().one() as lane:  # the only one, as only this thread calls
        assert isinstance(lane, FileLane)
        lane.agent = Timed(lane.agent, spent)  # type: ignore[assignment]
        lane.mover._agent = lane.agent
    views = arena.views(range(PAGES))
    best = {}
    for _ in range(5):
        keys = [os.urandom(40) for _ in range(PAGES)]
        for name, call in (("write", storage.write), ("read", storage.read)):
            spent[0] = 0.0
            start = time.perf_counter()
            results = call(keys, views)
            own = (time.perf_counter() - start - spent[0]) / PAGES * 1e6
            assert results == [DONE] * PAGES
            best[name] = min(own, best.get(name, own))
        start = time.perf_counter()
        assert all(storage.contains(keys))
        own = (time.perf_counter() - start) / PAGES * 1e6
        best["contains"] = min(own, best.get("contains", own))
    storage.close()
    print({name: f"{us:.2f} us" for name, us in best.items()})
    assert all(us < MOST_US for us in best.values()), best
