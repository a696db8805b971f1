"""Groups with a scheduler each share the experts of one model: each answers its own requests, whatever others do."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stepwell import ConfigError, Part, PeerLost
from stepwell_kernels.dispatch.config import CollectiveConfig, LowLatencyConfig
from stepwell_kernels.plugin import stepwell_dispatchers
from stepwell_transformers.config import TransformersConfig
from stepwell_transformers.runner import TransformersRunner

OFFERS = {offer.name: offer for offer in stepwell_dispatchers()}
NORMAL = Part(OFFERS["collective"], CollectiveConfig())
SMALL = Part(OFFERS["collective-low-latency"], LowLatencyConfig(capacity=4))
ANSWER = 6
PROMPTS = {0: (40, 3, 17), 1: (9,), 2: ()}
"""Lengths, by group: many, one, none."""


def closed(runners: Sequence[TransformersRunner]) -> None:
    """Each waits for the others' word that they end, too."""
    with ThreadPoolExecutor(max(1, len(runners))) as threads:
        list(threads.map(lambda runner: runner.close(), runners))


@pytest.fixture
def groups_of(place: Any, driver_of: Callable[..., Any], tmp_path: Path) -> Iterator[Callable[..., list[Any]]]:
    """Drivers of the runner of each group."""
    runners: list[TransformersRunner] = []

    def make(folder: Path, groups: int, **settings: Any) -> list[Any]:
        config = TransformersConfig(model=str(folder), dtype="float32", device="cpu", chunk=32, **settings)
        commons = f"file://{tmp_path}/commons"

        def start(group: int) -> TransformersRunner:
            return TransformersRunner(config, replace(place, group=group, groups=groups, commons=commons))

        with ThreadPoolExecutor(groups) as threads:
            runners.extend(threads.map(start, range(groups)))
        return [driver_of(runner, 4) for runner in runners]

    yield make
    closed(runners)


def prompts_of(group: int) -> list[list[int]]:
    return [[(7 * group + 13 * which + at * at) % 300 for at in range(n)] for which, n in enumerate(PROMPTS[group])]


@pytest.mark.parametrize(
    ("family", "groups", "settings"),
    [
        ("qwen3-moe", 2, {"dispatch": NORMAL}),
        ("qwen2-moe", 3, {"dispatch": NORMAL, "decode_dispatch": SMALL}),
        ("deepseek-v3", 2, {"dispatch": NORMAL, "decode_dispatch": SMALL}),
        ("mixtral", 2, {"dispatch": NORMAL, "overlap": 4}),
    ],
)
def test_b114_groups_with_more_less_and_nothing_to_do_answer_as_generate_does(
    family: str,
    groups: int,
    settings: dict[str, Any],
    folder_of: Callable[[str], Path],
    groups_of: Callable[..., list[Any]],
    truth: Callable[..., Any],
) -> None:
    if groups == 3:
        settings = {**settings, "experts": replace(TransformersConfig().experts, spare=1)}
    folder = folder_of(family)
    drivers = groups_of(folder, groups, **settings)

    def serve(group: int) -> list[list[int]]:
        time.sleep(0.05 * group)
        found: list[list[int]] = drivers[group].serve(prompts_of(group), ANSWER, chunk=16) if PROMPTS[group] else []
        return found

    with ThreadPoolExecutor(groups) as threads:
        answers = list(threads.map(serve, range(groups)))
    for group, said in enumerate(answers):
        for prompt, got in zip(prompts_of(group), said, strict=True):
            truth(folder, prompt, ANSWER).check(got)


def test_a_group_that_is_gone_ends_the_others(
    folder_of: Callable[[str], Path], groups_of: Callable[..., list[Any]]
) -> None:
    first, second = groups_of(folder_of("qwen3-moe"), 2, dispatch=NORMAL)
    second.runner._together._bells.close()  # as a process that was killed
    with pytest.raises(PeerLost, match="group 1 is gone"):
        first.serve(prompts_of(1), 1)
    first.runner._executor._plans.lost = second.runner._executor._plans.lost = PeerLost("over")


def test_groups_need_a_place_to_meet(place: Any, folder_of: Callable[[str], Path]) -> None:
    config = TransformersConfig(model=str(folder_of("qwen3-moe")), dispatch=NORMAL)
    with pytest.raises(ConfigError, match=r"ranks\.dp = 1"):
        TransformersRunner(config, replace(place, group=0, groups=2, commons=""))
