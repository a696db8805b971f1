"""Choices: the kit, whose decision is whose, and how a config says it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from stepwell import Offer, Part, RankedPolicy, RunningView, SchedulePolicy, ScheduleView, WaitingView
from stepwell.builtin.choices import ChoicesConfig, choices
from stepwell.builtin.fcfs import Fcfs
from stepwell.config import Config
from stepwell.errors import ConfigError, PluginError
from stepwell.offers import NoConfig
from stepwell.plugins import Registry, load
from stepwell.schedule.decisions import Decisions
from stepwell.schedule.job import Job
from stepwell.schedule.queue import Queue
from stepwell.schedule.request import Request
from stepwell_testkit import KitContext, KitRequest, KitRunning, KitView, ScheduleKit


class Own(SchedulePolicy):
    """Takes every decision, each so that it can be told from the defaults and from another of these."""

    max_passes = 7

    def __init__(self, name: str = "order") -> None:
        self.name = name

    def order(self, waiting: Sequence[WaitingView], view: ScheduleView) -> Sequence[WaitingView]:
        return sorted(waiting, key=lambda request: request.length)

    def admit(self, request: WaitingView, view: ScheduleView) -> bool:
        return request.rid != self.name

    def look_past(self, request: WaitingView, misfits: int, view: ScheduleView) -> bool:
        return misfits < len(self.name)

    def preempt(
        self, request: WaitingView, running: Sequence[RunningView], view: ScheduleView
    ) -> Sequence[RunningView]:
        return [one for one in running if one.rid == self.name]

    def victim(self, running: Sequence[RunningView], view: ScheduleView) -> RunningView:
        return next((one for one in running if one.rid == self.name), running[0])

    def chunks(self, prompts: Sequence[RunningView], budget: int, view: ScheduleView) -> Sequence[int]:
        return [min(prompt.unplanned, budget // len(prompts), len(self.name)) for prompt in prompts]


class Ranked(Fcfs):
    """Counts how often it is asked for a place."""

    probes = True
    max_passes = 9
    asked = 0

    def place(self, request: WaitingView, view: ScheduleView) -> tuple[None, int]:
        self.asked += 1
        return super().place(request, view)


def part(policy: SchedulePolicy) -> Part[SchedulePolicy]:
    return Part(Offer("given", lambda config, context: policy), NoConfig())


class TestOwnOrder(ScheduleKit):
    @pytest.fixture
    def policy(self, context: KitContext) -> SchedulePolicy:
        return choices(ChoicesConfig(part(Own()), victim=part(Fcfs(NoConfig(), None))), context)


class TestRankedOrder(ScheduleKit):
    @pytest.fixture
    def policy(self, context: KitContext) -> SchedulePolicy:
        return choices(ChoicesConfig(part(Ranked(NoConfig(), None)), chunks=part(Own())), context)


@pytest.mark.parametrize("order", [Own(), Ranked(NoConfig(), None)])
@pytest.mark.parametrize("decision", ["admit", "look_past", "preempt", "victim", "chunks"])
def test_each_decision_is_its_own_policys_and_the_others_are_the_orders(
    context: KitContext, order: SchedulePolicy, decision: str
) -> None:
    other = Own("somebody else")
    policy = choices(ChoicesConfig(part(order), **{decision: part(other)}), context)
    waiting = [KitRequest(0, "order"), KitRequest(1, "somebody else", length=8, priority=1)]
    running = [KitRunning(5, "order", unplanned=90), KitRunning(6, "somebody else", unplanned=90), KitRunning(7)]
    view = KitView(running=running)

    def answers(asked: SchedulePolicy) -> dict[str, Any]:
        return {
            "admit": [asked.admit(request, view) for request in waiting],
            "look_past": [asked.look_past(waiting[0], misfits, view) for misfits in range(1, 20)],
            "preempt": list(asked.preempt(waiting[1], running, view)),
            "victim": asked.victim(running, view),
            "chunks": list(asked.chunks(running, 60, view)),
        }

    assert answers(policy) == {**answers(order), decision: answers(other)[decision]}
    assert answers(order)[decision] != answers(other)[decision]
    assert list(policy.order(waiting, view)) == list(order.order(waiting, view))
    assert policy.max_passes == order.max_passes


def test_a_kept_order_stays_one_that_core_keeps(context: KitContext) -> None:
    """It asks for a place a request, not a place a request and pass."""
    ranked = Ranked(NoConfig(), None)
    policy = choices(ChoicesConfig(part(ranked), victim=part(Own())), context)
    assert isinstance(policy, RankedPolicy) and policy.probes
    assert not isinstance(choices(ChoicesConfig(part(Own()), victim=part(ranked)), context), RankedPolicy)
    faults: list[str] = []
    queue = Queue(policy, faults.append)
    view: Any = KitView()
    view.news = list
    for order in range(20):
        request = Request(rid=str(order), namespace=b"", tokens=b"\0\0\0\0", priority=order % 2)
        queue.add(Job(request, order, float(order)))
    for _ in range(5):
        assert [job.order for job in queue.ordered(view)] == [*range(1, 20, 2), *range(0, 20, 2)]
    assert (ranked.asked, faults) == (20, [])


@pytest.mark.parametrize(
    ("parts", "preempts"),
    [({}, False), ({"preempt": Own()}, True), ({"victim": Own()}, False)],
)
@pytest.mark.parametrize("order", [Ranked(NoConfig(), None), Own()])
def test_core_need_not_ask_who_gives_way_where_nobody_would_say(
    context: KitContext, order: SchedulePolicy, parts: dict[str, SchedulePolicy], preempts: bool
) -> None:
    policy = choices(ChoicesConfig(part(order), **{name: part(one) for name, one in parts.items()}), context)
    asked = Decisions(policy, KitView(), print)  # type: ignore[arg-type]
    assert asked.preempts is (preempts or isinstance(order, Own))


def test_an_order_alone_is_that_policy(context: KitContext) -> None:
    order = Own()
    assert choices(ChoicesConfig(part(order)), context) is order


def test_a_policy_that_cannot_be_made_is_named_with_its_place(context: KitContext) -> None:
    config = ChoicesConfig(part(Own()), admit=Part(Offer("broken", lambda config, context: 1 / 0), NoConfig()))
    with pytest.raises(PluginError, match=r"schedule\.admit\.use = 'broken': ZeroDivisionError"):
        choices(config, context)
    config = ChoicesConfig(Part(Offer("none", lambda config, context: 5), NoConfig()))
    with pytest.raises(PluginError, match=r"schedule\.order\.use = 'none': made a int, which is no SchedulePolicy"):
        choices(config, context)


# --- the config ----------------------------------------------------------------------------------------------------

TOML = """
[schedule]
use = "choices"
victim = "fcfs"
[schedule.order]
use = "lpm"
max_passes = 16
[schedule.chunks]
use = "fcfs"
"""


@pytest.fixture(scope="module")
def registry() -> Registry:
    return load()


def read(toml: str, folder: Path, *sets: str) -> Config:
    path = folder / "site.toml"
    path.write_text(toml)
    return Config.load(path, {}, sets)


def test_parts_are_named_in_tables_or_in_their_place(registry: Registry, tmp_path: Path, context: KitContext) -> None:
    config = read(TOML, tmp_path)
    chosen = config.choose("schedule", "schedule", registry)
    assert chosen is not None
    policy = chosen.offer.make(chosen.settings, context)
    assert isinstance(policy, RankedPolicy) and policy.max_passes == 16
    shown = {line.key: (line.value, line.origin.rpartition(":")[2]) for line in config.shown()}
    assert shown["use"] == ("'choices'", "3")
    assert shown["order.use"] == ("'lpm'", "6") and shown["order.max_passes"] == ("16", "7")
    assert shown["order.granularity"][1] == "default"
    assert shown["victim"] == ("fcfs", "4") or shown["victim"] == ("'fcfs'", "4")
    assert shown["chunks.use"] == ("'fcfs'", "9")
    assert shown["admit"] == shown["preempt"] == shown["look_past"] == ("(not set)", "default")


@pytest.mark.parametrize("sets", [(), ("schedule.order=lpm",)])
def test_the_order_too_may_be_named_in_one_line(registry: Registry, tmp_path: Path, sets: tuple[str, ...]) -> None:
    config = read('[schedule]\nuse = "choices"\norder = "lpm"\n', tmp_path, *sets)
    chosen = config.choose("schedule", "schedule", registry)
    assert chosen is not None and chosen.settings.order.offer.name == "lpm"


@pytest.mark.parametrize(
    ("sets", "sentence"),
    [
        ((), "schedule.order.use is required and not set; have "),
        (
            ("order.use=lmp",),
            "schedule.order.use = 'lmp' (--set schedule.order.use): nothing installed offers it; have",
        ),
        (("order.use=fcfs", "order.max_passes=1"), "schedule.order.max_passes (--set schedule.order.max_passes): no s"),
        (("order.use=lpm", "order.max_passes=-1"), "schedule.order.max_passes (--set schedule.order.max_passes): -1 i"),
        (("order.use=fcfs", "admit=fsfc"), "schedule.admit = 'fsfc' (--set schedule.admit): nothing installed offers"),
        (("order.use=fcfs", "victims.use=fcfs"), "schedule.victims (--set schedule.victims.use): no such setting; did"),
        (("order=lmp",), "schedule.order = 'lmp' (--set schedule.order): nothing installed offers it; have"),
        (("order=fcfs", "admit.max_passes=5"), "schedule.admit.use is required and not set; have choices, dfs-weight"),
    ],
)
def test_mistakes_are_one_sentence_with_their_place(
    registry: Registry, tmp_path: Path, sets: tuple[str, ...], sentence: str
) -> None:
    config = read('[schedule]\nuse = "choices"\n', tmp_path, *(f"schedule.{one}" for one in sets))
    with pytest.raises(ConfigError) as told:
        config.choose("schedule", "schedule", registry)
    assert str(told.value).startswith(sentence)
