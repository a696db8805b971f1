"""Two ranks on two CUDA devices, with graphs, and with pages going to host and back."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import stepwell

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="this machine has no two CUDA devices"),
]

FEW = [2, 8]
"""Graphs for so few sizes that they are quickly captured, and rows are padded."""


def prompts() -> list[list[int]]:
    rng = random.Random(5)
    shared = [rng.randrange(3, 300) for _ in range(100)]
    return [shared[: rng.choice([0, 50, 100])] + [rng.randrange(3, 300) for _ in range(20 + i)] for i in range(6)]


def engine(folder: Path, **runner: Any) -> stepwell.Engine:
    cache = {"page_size": 16, "device_pages": 12, "host_pages": 100}
    runner = {"use": "transformers", "model": str(folder), "device": "cuda", "graphs": FEW, **runner}
    return stepwell.Engine(runner=runner, cache=cache, write={"use": "write_through"}, ranks={"tp": 2})


@pytest.mark.parametrize("kind", ["llama", "qwen3-moe"])
def test_greedy_answers_of_two_devices_equal_generate(
    tiny: Callable[[str], Path], truth: Callable[..., Any], kind: str
) -> None:
    asked = prompts()
    with engine(tiny(kind), dtype="float32") as served:
        for _ in range(3):
            for prompt, answer in zip(asked, served.generate(asked, max_tokens=12, ignore_eos=True), strict=True):
                truth(tiny(kind), prompt, 12).check(answer.tokens)
        stats = served.stats()
    assert stats["cached_device"] > 0
    assert stats["cached_host"] > 0


def test_answers_are_the_same_whichever_way_ranks_sum(tiny: Callable[[str], Path]) -> None:
    """Of two ranks, both ways round the same sums once; what is fused behind them would not."""
    said = []
    for one_shot in (True, False):
        with engine(tiny("llama"), dtype="bfloat16", fuse="off", one_shot=one_shot) as served:
            done = [served.generate(prompt, max_tokens=12, ignore_eos=True) for prompt in prompts()]
            said.append([list(answer.tokens) for answer in done])
    assert said[0] == said[1]
