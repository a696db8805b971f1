"""Two halves on a CUDA device: eagerly, and decodes from one graph with the exchanges as branches."""

from __future__ import annotations

import pytest
import torch

import stepwell

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device"),
]


@pytest.mark.parametrize("graphs", [False, [2, 8]])
@pytest.mark.parametrize("overlap", [2, "auto"])
@pytest.mark.parametrize("family", ["qwen3-moe", "deepseek-v3"])
def test_greedy_answers_are_those_of_generate(experts_model, truth, make_prompts, family, overlap, graphs):
    """One rank, whose exchanges are with itself."""
    runner = {
        "use": "transformers",
        "model": str(experts_model(family)),
        "device": "cuda",
        "dtype": "float32",
        "graphs": graphs,
        "dispatch": "collective",
        "decode_dispatch": "collective-low-latency",
        "overlap": overlap,
    }
    prompts = make_prompts(1, 30, 47, 5, 18, 60)
    with stepwell.Engine(runner=runner, cache={"page_size": 16, "device_pages": 200}, engine={"chunk": 40}) as engine:
        for prompt, answer in zip(prompts, engine.generate(prompts, max_tokens=24, ignore_eos=True), strict=True):
            truth(experts_model(family), prompt, 24).check(answer.tokens)
