"""The same on a CUDA device, with graphs and without, and with pages going to host and back."""

import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

import stepwell
from stepwell import Row, Sampling, SlotOpen, TableEdit

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device"),
]


FEW = [2, 8]
"""Graphs for so few sizes that they are quickly captured, and rows are padded."""
LATE = 100_000_000
"""Cycles for which a stream does nothing."""
MADE = [
    ("llama", {"graphs": FEW}),
    ("llama", {"graphs": False}),
    ("llama", {"graphs": FEW, "fuse": "off"}),
    ("llama", {"attention": "torch"}),
    ("qwen3", {"graphs": FEW}),
    ("qwen2", {"graphs": FEW}),
]
"""Ways to compute one model, and others that fuse differently."""


@pytest.mark.parametrize("page", [1, 16, 64])
def test_greedy_answers_on_cuda_equal_generate(tiny, truth, page):
    rng = random.Random(page)
    shared = [rng.randrange(3, 300) for _ in range(100)]
    asked = [shared[: rng.choice([0, 50, 100])] + [rng.randrange(3, 300) for _ in range(20 + i)] for i in range(6)]
    cache = {"page_size": page, "device_pages": {1: 180, 16: 12, 64: 4}[page], "host_pages": max(1600 // page, 24)}
    runner = {"use": "transformers", "model": str(tiny("llama")), "device": "cuda", "dtype": "float32", "graphs": FEW}
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
    runner = {"use": "transformers", "model": str(tiny(kind)), "device": "cuda", "dtype": "float32", "graphs": FEW}
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
    driver = drive(tiny(kind), page_size, device="cuda", graphs=FEW)
    answers = driver.serve(prompts, new=16, chunk=chunk, budget=60, stagger=1)
    for prompt, answer in zip(prompts, answers, strict=True):
        truth(tiny(kind), prompt, 16).check(answer)


@pytest.mark.parametrize("kind", ["gpt-oss", "gemma2", "llama4", "mixtral"])
def test_bfloat16_of_windows_and_experts_is_proven_on_cuda(tiny, drive, make_prompts, kind):
    driver = drive(tiny(kind), 16, device="cuda", dtype="bfloat16", graphs=FEW)
    assert all(len(answer) == 8 for answer in driver.serve(make_prompts(20, 70), new=8))


def test_bfloat16_and_a_budget_of_its_own(tiny):
    runner = {"use": "transformers", "model": str(tiny("qwen3")), "device": "cuda", "dtype": "bfloat16", "graphs": FEW}
    with stepwell.Engine(runner=runner) as engine:
        prompt = list(range(3, 60))
        first = engine.generate(prompt, max_tokens=16, ignore_eos=True)
        again = engine.generate(prompt, max_tokens=16, ignore_eos=True)
    assert len(first.tokens) == len(again.tokens) == 16  # which they are may differ: bfloat16 rounds with the batch
    assert again.cached.device == 48


@pytest.mark.parametrize(("page_size", "chunk"), [(1, 512), (16, 5), (64, 33)])
@pytest.mark.parametrize(("kind", "settings"), MADE)
def test_chunks_and_decodes_together(tiny, truth, drive, make_prompts, kind, settings, page_size, chunk):
    prompts = make_prompts(1, 16, 17, 70, 40)
    driver = drive(tiny(kind), page_size, device="cuda", **settings)
    answers = driver.serve(prompts, new=16, chunk=chunk, budget=40, stagger=1)
    for prompt, answer in zip(prompts, answers, strict=True):
        truth(tiny(kind), prompt, 16).check(answer)


@pytest.mark.parametrize("copies", ["auto", "cuda", "triton", "engine", "torch"])
def test_pages_go_from_one_runner_to_another_through_pinned_memory(tiny, truth, drive, make_prompts, page_copy, copies):
    """Saved from CUDA, continued on CUDA and on CPU; what is out of bounds fails by itself."""
    folder, (prompt,) = tiny("llama"), make_prompts(50)
    tokens = np.array(prompt, np.int32).tobytes()
    first = drive(folder, 16, host=8, device="cuda", graphs=FEW, copies=copies)
    pages, slot = first.pages(50), SlotOpen(0, Sampling(), tokens, 0)
    first.step(rows=(Row(0, 0, 50, tokens, False),), opens=(slot,), tables=(TableEdit(0, 0, 0, pages),))
    first.step(saves=(page_copy(1, pages[:3].tolist(), [6, 1, 4]), page_copy(2, pages[:1].tolist(), [99])))
    saved = {}
    while len(saved) < 2:
        saved |= first.runner.saved()
    assert saved == {1: (True,) * 3, 2: (False,)}
    for device in ("cuda", "cpu"):
        second = drive(folder, 16, host=8, device=device, graphs=FEW, copies=copies)
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
    driver = drive(tiny("llama"), 16, device="cuda", graphs=FEW)
    first, again = driver.serve(make_prompts(20) * 2, new=12, sampling=hot)
    assert first == again
    assert driver.runner.budget() > 0


def test_aborts_and_retraction_change_no_answer_on_cuda(tiny, truth):
    """Many steps, two in flight, while requests leave at any time and pages are scarce."""
    rng = random.Random(5)
    asked = [[rng.randrange(3, 300) for _ in range(rng.choice([5, 33, 90]))] for _ in range(8)]
    runner = {"use": "transformers", "model": str(tiny("llama")), "device": "cuda", "dtype": "float32", "graphs": FEW}
    cache = {"page_size": 4, "device_pages": 110, "host_pages": 200}
    settings = {"runner": runner, "cache": cache, "write": {"use": "write_through"}, "engine": {"chunk": 32}}
    with stepwell.Engine(**settings) as engine, ThreadPoolExecutor(8) as pool:

        def leave(prompt):
            stream = engine.stream(prompt, max_tokens=60, ignore_eos=True)
            for _, _text in zip(range(rng.randrange(0, 6)), stream, strict=False):
                pass
            stream.close()

        def ask(prompt):
            return engine.generate(prompt, max_tokens=60, ignore_eos=True).tokens

        left = [pool.submit(leave, prompt) for prompt in asked * 2]
        answers = list(pool.map(ask, asked))
        for future in left:
            future.result()
        assert engine.stats()["retractions"] > 0
    for prompt, answer in zip(asked, answers, strict=True):
        truth(tiny("llama"), prompt, 60).check(answer)


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gpt-oss", "gemma2", "gemma3"])
def test_logits_in_bfloat16_are_as_near_to_those_in_float32_as_the_librarys_own(tiny, drive, make_prompts, kind):
    """A prompt in chunks, then decodes; what was sampled is then told to the library in either precision."""
    driver = drive(tiny(kind), 16, device="cuda", dtype="bfloat16", graphs=FEW)
    (prompt,) = make_prompts(60)
    said, odds, pages = list(prompt), [], [driver.pages(96, group) for group in range(len(driver.runner.groups))]
    opens = (SlotOpen(0, Sampling(logprobs=1), np.array(prompt, np.int32).tobytes(), 0),)
    tables = tuple(TableEdit(0, group, 0, own) for group, own in enumerate(pages))
    for first, end in ((0, 33), (33, 60)):
        part = np.array(prompt[first:end], np.int32).tobytes()
        result = driver.step(rows=(Row(0, first, end - first, part, end == 60),), opens=opens, tables=tables)
        opens, tables = (), ()
    for at in range(60, 90):
        said += result.tokens[0]
        odds.append(result.logprobs[0][0].logprob)
        result = driver.step(rows=(Row(0, at, 1, None, True),))

    def told(dtype):
        model = AutoModelForCausalLM.from_pretrained(tiny(kind), dtype=dtype, attn_implementation="eager")
        with torch.inference_mode():
            logits = model(torch.tensor([said]), use_cache=False).logits[0, 59:-1]
        return torch.log_softmax(logits.float(), -1).gather(1, torch.tensor(said[60:])[:, None])[:, 0]

    exact = told(torch.float32)
    mine, own = ((found - exact).square().mean().sqrt() for found in (torch.tensor(odds), told(torch.bfloat16)))
    assert mine < 2 * own + 0.01


@pytest.mark.parametrize("graphs", [FEW, False])
def test_b043_saves_wait_for_the_steps_that_write_and_layers_for_their_loads_however_late(
    tiny, truth, drive, make_prompts, page_copy, graphs
):
    folder, (prompt,) = tiny("llama"), make_prompts(50)
    tokens = np.array(prompt, np.int32).tobytes()
    driver = drive(folder, 16, host=8, device="cuda", graphs=graphs)
    lanes = driver.runner._opened._lanes
    driver.serve([prompt], new=2)  # nothing is compiled from here on

    def ended(number):
        while number not in (saved := driver.runner.saved()):
            pass
        return saved[number]

    pages, slot = driver.pages(50), SlotOpen(0, Sampling(), tokens, 0)
    with lanes.compute.enqueue():
        torch.cuda._sleep(LATE)
    driver.launch(rows=(Row(0, 0, 50, tokens, False),), opens=(slot,), tables=(TableEdit(0, 0, 0, pages),))
    driver.launch(saves=(page_copy(1, pages[:3].tolist(), [6, 1, 4]),))
    assert ended(1) == (True,) * 3
    with lanes.saves.enqueue():
        torch.cuda._sleep(LATE)
    driver.step(saves=(page_copy(2, pages[:1].tolist(), [0]),))
    assert driver.runner.saved() == {}
    assert ended(2) == (True,)
    for start in (48, 49):  # a prompt of two tokens, and one that looks like a decode
        mine = driver.pages(80)
        with lanes.loads.enqueue():
            torch.cuda._sleep(LATE)
        result = driver.step(
            closes=(0,),
            opens=(slot,),
            tables=(TableEdit(0, 0, 0, mine), TableEdit(0, 0, 3, pages[3:])),
            loads=(page_copy(9, mine[:3].tolist(), [6, 1, 4]),),
            rows=(Row(0, start, 50 - start, tokens[start * 4 :], True),),
        )
        assert result.copies == {9: (True,) * 3}
        truth(folder, prompt, 1).check(result.tokens[0])


def test_a_step_without_a_page_is_an_error_and_the_next_one_works_on_cuda(tiny, truth, drive, make_prompts):
    driver = drive(tiny("llama"), 16, device="cuda", graphs=FEW)
    (prompt,) = make_prompts(20)
    tokens, opens = np.array(prompt, np.int32).tobytes(), (SlotOpen(0, Sampling(), b"", 0),)
    tables = (TableEdit(0, 0, 0, driver.pages(16)),)
    result = driver.step(rows=(Row(0, 0, 20, tokens, True),), opens=opens, tables=tables, error=True)
    assert "needs a page that its table lacks" in result.error
    truth(tiny("llama"), prompt, 8).check(driver.serve([prompt], new=8)[0])
