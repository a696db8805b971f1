"""The live loop end to end on the sim runner: right answers whatever happens, and a sign of life while it does."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from stepwell.abc.runner import Step, StepPlan
from stepwell.abc.sink import Event, PagesStored, Sink
from stepwell.abc.storage import Storage
from stepwell.builtin.memory import MemoryConfig, MemoryStorage
from stepwell.builtin.sim import SimRunner
from stepwell.engine.client import EngineLost
from stepwell.engine.parts import Parts
from stepwell.errors import ConfigError, PluginError, StepwellError
from stepwell.types import Failed, PageKey, PageResult, PageViews, Tier

from .conftest import TIERS, Live

OFF = {"cache.page_size": 4, "cache.device_pages": 48}
Lives = Callable[..., Live]


def prompt(seed: int, length: int = 40) -> list[int]:
    return [random.Random(seed).randrange(256) for _ in range(length)]


def fresh(storage: Storage) -> Callable[[Parts], Parts]:
    return lambda parts: replace(parts, storage=storage)


def memory() -> MemoryStorage:
    return MemoryStorage(MemoryConfig(), None)  # type: ignore[arg-type]


# --- right answers -----------------------------------------------------------------------------------------------


def test_each_tier_gives_what_was_computed(lives: Lives) -> None:
    live = lives()
    text = prompt(1)
    assert live.ask(text).last.cached.total == 0
    live.settle(lambda stats: stats["pages_stored"] >= 10)
    again = live.ask(text).last
    assert again.cached.device == 36, "at least one token is left to compute, so the last whole page is not taken"
    live.engine.control("flush")
    assert live.ask(text).last.cached.storage == 36
    live.engine.control("audit")


def test_answers_are_the_same_with_and_without_tiers_under_load(lives: Lives) -> None:
    """Prompts that share prefixes, more of them than fit, some aborted: every answer is checked against the oracle."""
    for settings in (TIERS, OFF, {**TIERS, "write.use": "write_back"}):
        live = lives(settings)
        rng = random.Random(3)
        running = []
        for number in range(60):
            text = prompt(rng.randrange(4), 20) + prompt(number % 12 + 10, rng.randrange(1, 40))
            running.append(live.start(live.request(text, rng.randrange(1, 12))))
            if number % 5 == 4:
                live.engine.abort(running[-2].rid)
            if number % 20 == 19:
                for one in running:
                    one.end()
        for one in running:
            if one.end().finish != "abort":
                one.check()
        live.settle()
        live.engine.control("audit")
        live.close()


def test_pages_survive_a_restart_in_storage_that_does(lives: Lives) -> None:
    class Lasting(MemoryStorage):
        def close(self) -> None:
            """Stays, as a folder would."""

    storage = Lasting(MemoryConfig(), None)  # type: ignore[arg-type]
    first = lives(TIERS, fresh(storage))
    first.ask(prompt(1))
    first.close()
    second = lives(TIERS, fresh(storage))
    assert second.ask(prompt(1)).last.cached.storage == 36, "closing waits for what is on its way"
    assert second.ask(prompt(1), salt="another").last.cached.total == 0


def test_b040_copies_are_done_while_nobody_asks(lives: Lives) -> None:
    live = lives()
    live.ask(prompt(1, 32))
    live.settle(lambda stats: stats["pages_stored"] >= 8)
    assert live.stats()["host_pages_held.full"] == 0


@pytest.mark.parametrize("fault", ["raise", "short", "damage", "fail", "hang", "lie"])
def test_b083_storage_that_misbehaves_costs_hits_and_never_an_answer(lives: Lives, fault: str) -> None:
    class Bad(MemoryStorage):
        wrong = False

        def read(self, keys: Sequence[PageKey], into: PageViews) -> list[PageResult]:
            results = super().read(keys, into)
            if not self.wrong:
                return results
            match fault:
                case "raise":
                    raise OSError("gone")
                case "short":
                    return results[1:]
                case "damage":
                    for view in into.buffers():
                        view[5] ^= 16
                case "fail":
                    return [Failed("no")] * len(results)
                case "hang":
                    time.sleep(0.5)
                case "lie":
                    for view in into.buffers():
                        view[:] = bytes(len(view))
            return results

    storage = Bad(MemoryConfig(), None)  # type: ignore[arg-type]
    live = lives({**TIERS, "tiers.timeout_s": 0.1, "prefetch.cap_s": 0.2}, fresh(storage))
    live.ask(prompt(1))
    live.settle(lambda stats: stats["pages_stored"] >= 10)
    live.engine.control("flush")
    storage.wrong = True
    begin = time.monotonic()
    assert live.ask(prompt(1)).last.cached.storage == 0
    assert time.monotonic() - begin < 5
    time.sleep(0.6 if fault == "hang" else 0)
    live.settle()
    live.engine.control("audit")
    if fault != "hang":
        assert sum(value for name, value in live.stats().items() if name.startswith("storage_failed_")) >= 9


def test_failed_copies_cost_hits_and_never_an_answer(lives: Lives) -> None:
    live = lives({**TIERS, "cache.device_pages": 24, "runner.fail_loads": [1, 3], "runner.fail_saves": [2, 4]})
    for _ in range(4):
        for seed in range(4):
            live.ask(prompt(seed))
    live.settle()
    live.engine.control("audit")


# --- ends --------------------------------------------------------------------------------------------------------


def test_an_abort_ends_a_request_in_any_state_and_frees_everything(lives: Lives) -> None:
    live = lives({**TIERS, "runner.pace": 0.01, "engine.max_running": 2})
    running = [live.start(live.request(prompt(seed), 60)) for seed in range(6)]
    running[0].next()
    for one in running:
        live.engine.abort(one.rid, "stop" if one is running[3] else "abort")
    assert [one.end().finish for one in running] == ["abort"] * 3 + ["stop"] + ["abort"] * 2
    live.settle()
    live.engine.control("audit")
    assert live.stats()["device_pages_held.full"] == 0


def test_a_drain_finishes_what_runs_and_refuses_the_rest(lives: Lives) -> None:
    live = lives({**TIERS, "runner.pace": 0.005})
    running = [live.start(live.request(prompt(seed), 20)) for seed in range(4)]
    running[0].next()
    done = threading.Thread(target=live.engine.control, args=("drain",))
    done.start()
    time.sleep(0.05)
    late = live.start(live.request(prompt(9)))
    assert late.end().finish == "refused" and "shutting down" in (late.last.error or "")
    done.join(20)
    assert not done.is_alive()
    for one in running:
        assert one.end(1).finish == "length"
        one.check()


def test_stopping_gives_what_runs_its_time_and_then_aborts_it(lives: Lives) -> None:
    live = lives({**TIERS, "runner.pace": 0.02})
    short, long = live.start(live.request(prompt(1), 5)), live.start(live.request(prompt(2), 140))
    short.next()
    begin = time.monotonic()
    live.engine.close(drain_s=0.5)
    assert 0.4 < time.monotonic() - begin < 10
    assert short.end(1).finish == "length"
    assert long.end(1).finish == "abort"
    after = live.start(live.request(prompt(3)))
    assert after.end(1).finish == "error" and "closed" in (after.last.error or "")
    with pytest.raises(EngineLost, match="closed"):
        live.engine.control("stats")


def test_what_can_never_fit_is_refused_with_the_limit(lives: Lives) -> None:
    live = lives(OFF)
    last = live.start(live.request(prompt(1, 500))).end()
    assert last.finish == "refused" and "192" in (last.error or "")
    live.ask(prompt(2))


class Breaks(SimRunner):
    """Raises where and when it is told to."""

    where = ""
    after = 3

    def launch(self, plan: StepPlan) -> Step:
        step = super().launch(plan)
        if plan.number >= self.after and self.where == "launch":
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        if plan.number >= self.after and self.where == "poll":
            step.poll = self._raise  # type: ignore[method-assign]
        return step

    def open(self, *args: object) -> None:
        if self.where == "open":
            raise RuntimeError("out of memory")
        super().open(*args)  # type: ignore[arg-type]

    def _raise(self) -> None:
        raise RuntimeError("the device has gone")


def breaking(where: str) -> Callable[[Parts], Parts]:
    def change(parts: Parts) -> Parts:
        assert isinstance(parts.runner, SimRunner)
        runner = Breaks(parts.runner.config)
        runner.where = where
        return replace(parts, runner=runner)

    return change


@pytest.mark.parametrize(("where", "sentence"), [("launch", "illegal memory access"), ("poll", "the device has gone")])
def test_a_runner_that_raises_ends_the_engine_with_one_sentence_for_everybody(
    lives: Lives, where: str, sentence: str
) -> None:
    live = lives(TIERS, breaking(where))
    running = [live.start(live.request(prompt(seed), 30)) for seed in range(5)]
    for one in running:
        last = one.end(10)
        assert last.finish == "error" and sentence in (last.error or "")
        assert (last.error or "").startswith("the engine ended: the runner")
    deadline = time.monotonic() + 10
    while not live.engine.why_down:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert not live.engine.alive()
    assert live.start(live.request(prompt(9))).end(1).finish == "error"


def test_a_runner_that_cannot_open_fails_the_start() -> None:
    with pytest.raises(PluginError, match="out of memory"):
        Live(TIERS, breaking("open"))


# --- signs of life -----------------------------------------------------------------------------------------------


def test_b138_pulses_come_during_long_steps(lives: Lives) -> None:
    live = lives({**OFF, "runner.pace": 2.5})
    running = live.start(live.request(prompt(1), 1))
    seen = set()
    begin = time.monotonic()
    while time.monotonic() - begin < 2.2:
        pulse = live.engine.last_pulse
        if pulse is not None:
            seen.add(pulse.ticks)
        assert live.engine.alive()
        time.sleep(0.05)
    assert len(seen) >= 4
    assert running.outputs.empty(), "the step was still running"
    assert running.end().finish == "length"


def test_b137_a_loop_that_stalls_is_not_alive(lives: Lives) -> None:
    def stall(parts: Parts) -> Parts:
        launch = parts.runner.launch

        def slow(plan: StepPlan) -> Step:
            time.sleep(2.5)
            return launch(plan)

        parts.runner.launch = slow  # type: ignore[method-assign]
        return parts

    live = lives(OFF, stall)
    running = live.start(live.request(prompt(1), 1))
    time.sleep(2.0)
    assert not live.engine.alive()
    assert running.end().finish == "length"


def test_an_idle_engine_sleeps(lives: Lives) -> None:
    live = lives()
    live.ask(prompt(1))
    live.settle()
    before = live.stats()["ticks"]
    time.sleep(1.5)
    assert live.stats()["ticks"] - before <= 8, "two a second, and the questions themselves"


def test_pulses_tell_how_the_engine_is_doing(lives: Lives) -> None:
    live = lives()
    live.ask(prompt(1))
    live.settle()
    time.sleep(0.7)
    pulse = live.engine.last_pulse
    assert pulse is not None and pulse.running == 0
    for name in ("computed_tokens", "device_pages_free.full", "storage_bytes_written", "pages_stored", "sink_dropped"):
        assert name in pulse.values


def test_an_idle_engine_proves_its_books_and_says_so_when_they_are_wrong(lives: Lives) -> None:
    live = lives()
    live.ask(prompt(1))
    live.settle()
    assert live.engine.control("audit") == {"clean": True}
    assert live.parts is not None
    audited = threading.Event()
    live.parts.cache.audit = audited.set  # type: ignore[method-assign]
    live.ask(prompt(2))
    assert audited.wait(6), "after a while of nothing to do, without being asked"


def test_unknown_verbs_are_answered(lives: Lives) -> None:
    with pytest.raises(StepwellError, match="'dance' is no verb"):
        lives().engine.control("dance")


# --- events ------------------------------------------------------------------------------------------------------


class Keeps(Sink):
    def __init__(self) -> None:
        self.events: list[Event] = []
        self.closed = False

    def take(self, events: Sequence[Event]) -> None:
        self.events += events

    def close(self) -> None:
        self.closed = True


def test_events_reach_every_sink_and_one_that_raises_or_hangs_stops_nobody(lives: Lives, tmp_path: object) -> None:
    good, raising, hanging, free = Keeps(), Keeps(), Keeps(), threading.Event()
    raising.take = lambda events: 1 / 0  # type: ignore[method-assign,assignment]
    hanging.take = lambda events: free.wait(20) and None  # type: ignore[method-assign,assignment]
    hooked: list[Event] = []
    stopped: list[str] = []

    def change(parts: Parts) -> Parts:
        return replace(parts, sinks=[hanging, raising, good], on_events=hooked.extend, on_stop=stopped.append)

    live = lives({**TIERS, "sink.use": "jsonl", "sink.path": f"{tmp_path}/events"}, change)
    live.ask(prompt(1))
    live.settle(lambda stats: stats["pages_stored"] >= 10)
    time.sleep(0.05)
    stored = [event for event in good.events if isinstance(event, PagesStored) and event.tier is Tier.DEVICE]
    assert sum(len(event.keys) for event in stored) >= 10
    assert all(len(key) == 40 for event in stored for key in event.keys)
    live.settle(lambda stats: stats["sink_failed"] >= 1)
    free.set()
    live.close()
    assert hooked == good.events and good.closed and hanging.closed
    assert stopped == ["the engine is closed"]


# --- starts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"cache.device_pages": 1}, r"cache\.device_pages \(argument\): the device holds 4 tokens"),
        ({"cache.device_gib": 1e-9}, r"cache\.device_gib \(argument\): .* hold no page"),
        ({"cache.device_pages": 9, "cache.host_gib": 1e-9}, r"cache\.host_gib \(argument\): .* hold no page"),
        (
            {"cache.groups.fulll.device_pages": 9},
            r"cache\.groups .*: the model has no group fulll; did you mean full\?",
        ),
        ({"cache.page_size": 2**16, "cache.device_pages": 9, "cache.host_pages": 2**16}, r"lower cache\.host_pages"),
        ({"cache.page_size": 2**16, "cache.device_pages": 2**21}, r"lower cache\.device_pages"),
        ({"cache.device_pages": 2**60}, r"cache\.device_pages \(argument\): .* more than can be meant"),
        ({"storage.use": "memory"}, r"\[storage\] \(argument\) has no effect without a host tier"),
        ({"sink.use": "jsonl", "sink.path": "/proc/no/such"}, r"sink\.use = 'jsonl' \(argument\): .*Error"),
    ],
)
def test_a_config_that_cannot_run_is_said_in_a_sentence(settings: dict[str, object], sentence: str) -> None:
    with pytest.raises((ConfigError, PluginError), match=sentence):
        Live({"cache.page_size": 4, **settings})


def test_groups_may_be_sized_one_by_one(lives: Lives) -> None:
    live = lives(
        {
            "cache.page_size": 4,
            "cache.device_pages": 40,
            "cache.host_pages": 50,
            "cache.groups.window8.device_pages": 20,
            "cache.groups.window8.host_pages": 30,
            "runner.windows": [8],
        }
    )
    stats = live.stats()
    assert (stats["device_pages_total.full"], stats["device_pages_total.window8"]) == (40, 20)
    assert (stats["host_pages_total.full"], stats["host_pages_total.window8"]) == (50, 30)
    live.ask(prompt(1))
    live.ask(prompt(1))
