"""Ranks over gloo, threads here, each with a runner of its own: greedy answers are those of transformers' generate."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stepwell import Part
from stepwell_kernels.dispatch.config import AutoConfig, CollectiveConfig, LowLatencyConfig
from stepwell_kernels.plugin import stepwell_dispatchers
from stepwell_transformers.config import TransformersConfig
from stepwell_transformers.experts import ExpertsSettings
from stepwell_transformers.runner import TransformersRunner

ANSWER = 6
LENGTHS = (40, 3, 17, 65)
OFFERS = {offer.name: offer for offer in stepwell_dispatchers()}

NORMAL = Part(OFFERS["collective"], CollectiveConfig())
SMALL = Part(OFFERS["collective-low-latency"], LowLatencyConfig(capacity=2))
AUTO = Part(OFFERS["auto"], AutoConfig(NORMAL, SMALL))


@pytest.fixture
def ranks_of(place: Any, driver_of: Callable[..., Any], tmp_path: Path) -> Iterator[Callable[..., list[Any]]]:
    """Drivers of a runner on each of some ranks."""
    runners: list[TransformersRunner] = []

    def make(folder: Path, ranks: int, **settings: Any) -> list[Any]:
        config = TransformersConfig(model=str(folder), dtype="float32", device="cpu", chunk=32, **settings)

        def start(rank: int) -> TransformersRunner:
            return TransformersRunner(config, replace(place, rank=rank, world=ranks, meet=f"file://{tmp_path}/meet"))

        with ThreadPoolExecutor(ranks) as threads:
            runners.extend(threads.map(start, range(ranks)))
        return [driver_of(runner, 4) for runner in runners]

    yield make
    for runner in runners:
        runner.close()


@pytest.mark.parametrize(
    ("family", "ranks", "settings"),
    [
        ("mixtral", 2, {"dispatch": NORMAL}),
        ("mixtral", 4, {"dispatch": SMALL, "decode_dispatch": SMALL}),
        ("qwen3-moe", 2, {"dispatch": NORMAL, "decode_dispatch": SMALL, "experts": ExpertsSettings(2)}),
        ("qwen3-moe", 4, {"dispatch": AUTO, "experts": ExpertsSettings(4)}),
        ("qwen2-moe", 2, {"dispatch": AUTO}),
        ("qwen2-moe", 4, {"dispatch": NORMAL}),
        ("gpt-oss", 2, {"dispatch": SMALL}),
        ("gpt-oss", 4, {"dispatch": NORMAL, "decode_dispatch": SMALL}),
        ("deepseek-v3", 2, {"dispatch": NORMAL, "decode_dispatch": SMALL}),
        ("deepseek-v3", 4, {"dispatch": AUTO, "experts": ExpertsSettings(4)}),
    ],
)
def test_greedy_answers_equal_generate(
    family: str,
    ranks: int,
    settings: dict[str, Any],
    folder_of: Callable[[str], Path],
    truth: Callable[..., Any],
    ranks_of: Callable[..., list[Any]],
    make_prompts: Callable[..., list[list[int]]],
) -> None:
    """Chunks of prompts beside decodes; steps with fewer tokens than ranks, and with more than a dispatch takes."""
    drivers, asked = ranks_of(folder_of(family), ranks, **settings), make_prompts(*LENGTHS, seed=5)

    def serve(driver: Any) -> list[list[int]]:
        answers: list[list[int]] = driver.serve(asked, ANSWER, chunk=32, budget=48, stagger=2)
        return answers

    with ThreadPoolExecutor(ranks) as threads:
        got = list(threads.map(serve, drivers))
    assert all(other == got[0] for other in got[1:])
    for prompt, answer in zip(asked, got[0], strict=True):
        truth(folder_of(family), prompt, ANSWER).check(answer)
