"""A live loop on a runner whose saves end on a thread of their own, behind the steps, or not at all."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest

from stepwell.abc.runner import PageCopy, Step, StepPlan
from stepwell.builtin.sim import SimRunner
from stepwell.engine import loop


class Behind(SimRunner):
    """Saves ripen on a timer, which wakes the loop as a device's callback would."""

    late_saves = True
    delay_s: float | None = 0.02
    broken = False

    def launch(self, plan: StepPlan) -> Step:
        ripe: deque[PageCopy] = self.__dict__.setdefault("ripe", deque())

        def ripen() -> None:
            ripe.extend(plan.saves)
            self.wake()

        if plan.saves and self.delay_s is not None:
            timer = threading.Timer(self.delay_s, ripen)
            timer.daemon = True
            timer.start()
        return super().launch(replace(plan, saves=()))

    def saved(self) -> Mapping[int, tuple[bool, ...]]:
        if self.broken:
            raise RuntimeError("the device is lost")
        assert self._memory is not None
        ripe: deque[PageCopy] = self.__dict__.get("ripe", deque())
        ended = {}
        while ripe:
            save = ripe.popleft()
            ended[save.id] = self._copy(save, False, self._memory.save)
        return ended


@pytest.fixture
def behind(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Behind]]:
    """The sim runner of this test."""
    monkeypatch.setattr("stepwell.builtin.sim.SimRunner", Behind)
    monkeypatch.setattr(Behind, "delay_s", 0.02)
    yield Behind


def test_saves_end_while_nobody_asks_and_give_their_pages_back(lives, behind):
    live = lives()
    prompt = list(range(1, 41))
    live.ask(prompt)
    live.settle(lambda stats: not stats["save_pages_in_flight"] and stats["bytes_saved"] > 0)
    for number in range(6):
        live.ask([100 + number] * 40)
    live.ask(prompt)
    stats = live.stats()
    assert stats["cached_host"] + stats["cached_device"] > 0
    assert live.engine.control("audit") == {"clean": True}


def test_an_engine_waits_for_saves_when_it_stops(lives, behind, monkeypatch):
    monkeypatch.setattr(behind, "delay_s", 0.3)
    live = lives()
    live.ask(list(range(1, 41)))
    began = time.monotonic()
    live.close()
    assert live.parts.brain.idle, "the saves had ended before the runner was closed"
    assert time.monotonic() - began < 5


def test_a_save_that_never_ends_does_not_keep_an_engine_from_stopping(lives, behind, monkeypatch):
    monkeypatch.setattr(behind, "delay_s", None)
    monkeypatch.setattr(loop, "SETTLE_S", 0.3)
    live = lives()
    live.ask(list(range(1, 41)))
    assert live.stats()["save_pages_in_flight"] > 0
    began = time.monotonic()
    live.close()
    assert time.monotonic() - began < 5
    assert not live.parts.brain.idle


def test_a_runner_that_fails_in_its_saves_ends_the_engine_with_a_sentence(lives, behind, monkeypatch):
    live = lives()
    running = live.start(live.request(list(range(1, 41)), max_tokens=100))
    running.next()
    monkeypatch.setattr(behind, "broken", True)
    last = running.end()
    assert last.finish == "error"
    assert "the device is lost" in last.error
