"""The same on a CUDA device, with pages going to host and back."""

import random

import pytest
import torch

import stepwell

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device"),
]


@pytest.mark.parametrize("page", [1, 16, 64])
def test_greedy_answers_on_cuda_equal_generate(tiny, truth, page):
    torch.backends.cuda.matmul.allow_tf32 = False
    rng = random.Random(page)
    shared = [rng.randrange(3, 300) for _ in range(100)]
    asked = [shared[: rng.choice([0, 50, 100])] + [rng.randrange(3, 300) for _ in range(20 + i)] for i in range(6)]
    cache = {"page_size": page, "device_pages": {1: 180, 16: 12, 64: 4}[page], "host_pages": max(1600 // page, 24)}
    runner = {"use": "transformers", "model": str(tiny("llama")), "device": "cuda", "dtype": "float32"}
    with stepwell.Engine(runner=runner, cache=cache, write={"use": "write_through"}) as engine:
        for _ in range(3):
            for prompt, answer in zip(asked, engine.generate(asked, max_tokens=12, ignore_eos=True), strict=True):
                truth(tiny("llama"), prompt, 12).check(answer.tokens)
        stats = engine.stats()
    assert stats["cached_device"] > 0
    assert stats["cached_host"] > 0


def test_bfloat16_and_a_budget_of_its_own(tiny):
    runner = {"use": "transformers", "model": str(tiny("qwen3")), "device": "cuda", "dtype": "bfloat16"}
    with stepwell.Engine(runner=runner) as engine:
        prompt = list(range(3, 60))
        first = engine.generate(prompt, max_tokens=16, ignore_eos=True)
        again = engine.generate(prompt, max_tokens=16, ignore_eos=True)
    assert first.tokens == again.tokens
    assert again.cached.device == 48
