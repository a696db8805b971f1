"""Experts change their places while they serve, and every answer is the one that generate gives."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepwell import Balancer, ExpertLoad, Offer, Part, Placement, Topology
from stepwell_kernels.dispatch.config import CollectiveConfig, LowLatencyConfig
from stepwell_kernels.plugin import stepwell_dispatchers
from stepwell_transformers.balance import TriggerSettings
from stepwell_transformers.config import TransformersConfig
from stepwell_transformers.experts import ExpertsSettings
from stepwell_transformers.runner import TransformersRunner

OFFERS = {offer.name: offer for offer in stepwell_dispatchers()}
NORMAL = Part(OFFERS["collective"], CollectiveConfig())
SMALL = Part(OFFERS["collective-low-latency"], LowLatencyConfig(capacity=4))
OFTEN = ExpertsSettings(
    spare=2, look_every=3, vote_every=1, layers=1, deadline=2000, trigger=TriggerSettings(1.0, min_gap=1, max_age=1)
)
"""A plan as soon as the last one is done, whatever the load."""
ANSWER = 40
PROMPTS = ((40, 3), (17, 9))
"""Lengths, by group."""


class Rotating(Balancer):
    """Every plan moves everything: each slot gets what the next one had."""

    def __init__(self, fault: Callable[[int], None]) -> None:
        self._fault, self._plans = fault, 0

    def place(self, load: ExpertLoad, topology: Topology, current: Placement | None) -> Placement:
        assert current is not None and load.shape[0] == len(current.experts)
        self._plans += 1
        self._fault(self._plans)
        return Placement(np.roll(current.experts, 1, axis=1))


def rotating(fault: Callable[[int, int], None] = lambda rank, plan: None) -> Part[Balancer]:
    """`fault(rank, plan)` is called in each plan."""
    return Part(Offer("rotating", lambda _, place: Rotating(lambda plan: fault(place.rank, plan))), None)


class Served:
    """Two ranks of one group, or two groups, driven to the end of their requests."""

    def __init__(self, drivers: Sequence[Any], *, groups: bool) -> None:
        self._drivers, self._groups = drivers, groups

    def prompts(self, at: int) -> list[list[int]]:
        """Ranks of one group have the same."""
        group = at if self._groups else 0
        return [
            [(7 * group + 13 * which + n * n) % 300 for n in range(length)]
            for which, length in enumerate(PROMPTS[group])
        ]

    def answers(self, again: int = 1) -> list[tuple[list[int], list[int]]]:
        def serve(at: int) -> list[tuple[list[int], list[int]]]:
            found = []
            for _ in range(again):
                prompts = self.prompts(at)
                found += list(zip(prompts, self._drivers[at].serve(prompts, ANSWER, chunk=16), strict=True))
            return found

        with ThreadPoolExecutor(len(self._drivers)) as threads:
            return [pair for pairs in threads.map(serve, range(len(self._drivers))) for pair in pairs]

    def values(self) -> list[dict[str, float]]:
        return [dict(driver.runner.values()) for driver in self._drivers]


@pytest.fixture
def served(place: Any, driver_of: Callable[..., Any], tmp_path: Path) -> Iterator[Callable[..., Served]]:
    runners: list[TransformersRunner] = []

    def make(folder: Path, *, groups: bool = False, **settings: Any) -> Served:
        settings = {"dispatch": NORMAL, "experts": OFTEN, **settings}
        config = TransformersConfig(model=str(folder), dtype="float32", device="cpu", chunk=32, **settings)
        meet = f"file://{tmp_path}/meet"

        def start(at: int) -> TransformersRunner:
            ranks = {"group": at, "groups": 2, "commons": meet} if groups else {"rank": at, "world": 2, "meet": meet}
            return TransformersRunner(config, replace(place, **ranks))

        with ThreadPoolExecutor(2) as threads:
            runners.extend(threads.map(start, range(2)))
        with ThreadPoolExecutor(2) as threads:  # who balances meets again when pages are there
            return Served(list(threads.map(lambda runner: driver_of(runner, 4), runners)), groups=groups)

    yield make
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda runner: runner.close(), runners))


@pytest.mark.parametrize(
    ("family", "groups", "settings"),
    [
        ("qwen3-moe", False, {}),
        ("gpt-oss", False, {"decode_dispatch": SMALL}),
        ("deepseek-v3", True, {}),
        ("mixtral", False, {"overlap": 2}),
    ],
)
def test_answers_stay_right_while_every_expert_moves_again_and_again(
    family: str,
    groups: bool,
    settings: dict[str, Any],
    folder_of: Callable[[str], Path],
    served: Callable[..., Served],
    truth: Callable[..., Any],
) -> None:
    folder = folder_of(family)
    both = served(folder, groups=groups, balance=rotating(), **settings)
    for prompt, got in both.answers():
        truth(folder, prompt, ANSWER).check(got)
    first, second = both.values()
    assert first["experts_plans"] == second["experts_plans"] >= 2
    assert first["experts_version"] == second["experts_version"] >= 4
    assert first["experts_bytes_moved"] > 0 and first["experts_dropped"] == 0


def test_b100_a_plan_that_one_rank_fails_at_is_dropped_by_all_and_the_next_one_begins(
    folder_of: Callable[[str], Path], served: Callable[..., Served], truth: Callable[..., Any]
) -> None:
    def fault(rank: int, plan: int) -> None:
        if rank == 1 and plan == 1:
            raise RuntimeError("no plan today")

    folder = folder_of("qwen3-moe")
    both = served(folder, balance=rotating(fault))
    for prompt, got in both.answers():
        truth(folder, prompt, ANSWER).check(got)
    for values in both.values():
        assert values["experts_dropped"] == 1
        assert values["experts_plans"] >= 1


def test_b100_a_plan_that_takes_too_long_is_given_up_in_steps(
    folder_of: Callable[[str], Path], served: Callable[..., Served], truth: Callable[..., Any]
) -> None:
    def fault(rank: int, plan: int) -> None:
        if rank == 0 and plan == 1:
            time.sleep(1.5)

    folder = folder_of("qwen3-moe")
    both = served(folder, balance=rotating(fault), experts=replace(OFTEN, deadline=5))
    for prompt, got in both.answers():
        truth(folder, prompt, ANSWER).check(got)
    dropped = [values["experts_dropped"] for values in both.values()]
    assert dropped[0] == dropped[1] >= 1


def test_b105_steps_go_on_while_a_plan_is_made(folder_of: Callable[[str], Path], served: Callable[..., Served]) -> None:
    def fault(rank: int, plan: int) -> None:
        time.sleep(3)

    both = served(folder_of("qwen3-moe"), balance=rotating(fault))
    begun = time.monotonic()
    both.answers()
    took = time.monotonic() - begun
    assert took < 3, "nothing waited for the plan"
    assert max(values["experts_pause_s_worst"] for values in both.values()) < 1


def test_b098_after_a_plan_the_new_places_are_used(
    folder_of: Callable[[str], Path], served: Callable[..., Served]
) -> None:
    both = served(folder_of("qwen3-moe"), balance=rotating())
    experts = [driver.runner._model.experts for driver in both._drivers]
    before = experts[0].placement
    both.answers()
    after = [one.placement for one in experts]
    assert np.array_equal(*after) and not np.array_equal(before, after[0])
    assert all(values["experts_version"] > 0 for values in both.values())
