"""The same on a CUDA device, with pages going to host and back."""

import random

import numpy as np
import pytest
import torch

import stepwell
from stepwell import Row, Sampling, SlotOpen, TableEdit

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


@pytest.mark.parametrize(("kind", "page"), [("gpt-oss", 16), ("gpt-oss", 1), ("mistral-sliding", 16), ("llama4", 4)])
def test_windows_on_cuda_come_back_from_host(tiny, truth, kind, page):
    rng = random.Random(page)
    first, *others = [[rng.randrange(3, 300) for _ in range(90)] for _ in range(6)]
    device = 56 if kind == "mistral-sliding" else 128
    cache = {"page_size": page, "device_pages": device // page, "host_pages": 4000 // page}
    runner = {"use": "transformers", "model": str(tiny(kind)), "device": "cuda", "dtype": "float32"}
    with stepwell.Engine(runner=runner, cache=cache, write={"use": "write_through"}, engine={"chunk": 16}) as engine:

        def ask(prompt):
            done = engine.generate(prompt, max_tokens=12, ignore_eos=True)
            truth(tiny(kind), prompt, 12).check(done.tokens)
            return done

        answer = list(ask(first).tokens)
        for other in others:
            ask(other)
        assert ask(first + answer + [5, 6, 7]).cached.host > 0


@pytest.mark.parametrize(("page_size", "chunk"), [(1, 512), (16, 24), (64, 33)])
@pytest.mark.parametrize("kind", ["gpt-oss", "gemma2", "gemma3", "mistral-sliding", "llama4", "qwen3-moe"])
def test_windows_sinks_caps_and_experts_on_cuda(tiny, truth, drive, make_prompts, kind, page_size, chunk):
    prompts = make_prompts(1, 12, 24, 70, 123)
    answers = drive(tiny(kind), page_size, device="cuda").serve(prompts, new=16, chunk=chunk, budget=60, stagger=1)
    for prompt, answer in zip(prompts, answers, strict=True):
        truth(tiny(kind), prompt, 16).check(answer)


@pytest.mark.parametrize("kind", ["gpt-oss", "gemma2", "llama4", "mixtral"])
def test_bfloat16_of_windows_and_experts_is_proven_on_cuda(tiny, drive, make_prompts, kind):
    driver = drive(tiny(kind), 16, device="cuda", dtype="bfloat16")
    assert all(len(answer) == 8 for answer in driver.serve(make_prompts(20, 70), new=8))


def test_bfloat16_and_a_budget_of_its_own(tiny):
    runner = {"use": "transformers", "model": str(tiny("qwen3")), "device": "cuda", "dtype": "bfloat16"}
    with stepwell.Engine(runner=runner) as engine:
        prompt = list(range(3, 60))
        first = engine.generate(prompt, max_tokens=16, ignore_eos=True)
        again = engine.generate(prompt, max_tokens=16, ignore_eos=True)
    assert len(first.tokens) == len(again.tokens) == 16  # which they are may differ: bfloat16 rounds with the batch
    assert again.cached.device == 48


@pytest.mark.parametrize(("page_size", "chunk"), [(1, 512), (16, 5), (64, 33)])
@pytest.mark.parametrize("kind", ["llama", "qwen3", "mistral"])
def test_chunks_and_decodes_together(tiny, truth, drive, make_prompts, kind, page_size, chunk):
    prompts = make_prompts(1, 16, 17, 70, 40)
    answers = drive(tiny(kind), page_size, device="cuda").serve(prompts, new=16, chunk=chunk, budget=40, stagger=1)
    for prompt, answer in zip(prompts, answers, strict=True):
        truth(tiny(kind), prompt, 16).check(answer)


def test_pages_go_from_one_runner_to_another_through_pinned_memory(tiny, truth, drive, make_prompts, page_copy):
    """Saved from CUDA, continued on CUDA and on CPU; what is out of bounds fails by itself."""
    folder, (prompt,) = tiny("llama"), make_prompts(50)
    tokens = np.array(prompt, np.int32).tobytes()
    first = drive(folder, 16, host=8, device="cuda")
    pages, slot = first.pages(50), SlotOpen(0, Sampling(), tokens, 0)
    first.step(rows=(Row(0, 0, 50, tokens, False),), opens=(slot,), tables=(TableEdit(0, 0, 0, pages),))
    saved = first.step(saves=(page_copy(1, pages[:3].tolist(), [6, 1, 4]), page_copy(2, pages[:1].tolist(), [99])))
    assert saved.copies == {1: (True,) * 3, 2: (False,)}
    for device in ("cuda", "cpu"):
        second = drive(folder, 16, host=8, device=device)
        second.arena.memory[:] = first.arena.memory
        mine = second.pages(80)
        result = second.step(
            opens=(slot,),
            tables=(TableEdit(0, 0, 0, mine),),
            loads=(page_copy(9, mine[:3].tolist(), [6, 1, 4]),),
            rows=(Row(0, 48, 2, tokens[48 * 4 :], True),),
        )
        assert result.copies == {9: (True,) * 3}
        answer = list(result.tokens[0])
        for at in range(50, 60):
            answer += second.step(rows=(Row(0, at, 1, None, True),)).tokens[0]
        truth(folder, prompt, 11).check(answer)


def test_draws_on_cuda_are_seeded(tiny, drive, make_prompts):
    hot = Sampling(temperature=1.0, seed=3, top_p=0.9, top_k=50, repetition_penalty=1.2, logprobs=2)
    driver = drive(tiny("llama"), 16, device="cuda")
    first, again = driver.serve(make_prompts(20) * 2, new=12, sampling=hot)
    assert first == again
    assert driver.runner.budget() > 0
