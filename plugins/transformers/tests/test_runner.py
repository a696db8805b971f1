"""The runner against transformers' own generate, over page sizes, chunks, batches and the host tier."""

import numpy as np
import pytest
import torch

from stepwell import Row, Sampling, SlotOpen, TableEdit

KINDS = ["llama", "qwen2", "qwen3", "mistral"]
EXPERTS = ["mixtral", "qwen3-moe"]
WINDOWS = {
    "gpt-oss": 9,
    "gemma2": 12,
    "gemma3": 16,
    "mimo": 9,
    "mistral-sliding": 11,
    "llama4": 24,
    "qwen3-sliding": 8,
    "qwen2-types": 13,
    "cohere2": 10,
    "olmo3": 14,
}
"""The window or chunk of each."""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("page_size", "chunk"), [(1, 512), (1, 7), (16, 512), (16, 16), (16, 5), (64, 64), (64, 33)])
def test_greedy_tokens_are_those_of_generate(tiny, truth, drive, make_prompts, kind, page_size, chunk):
    folder = tiny(kind)
    prompts = make_prompts(1, 15, 16, 17, 70, seed=page_size)
    answers = drive(folder, page_size).serve(prompts, new=20, chunk=chunk)
    for prompt, answer in zip(prompts, answers, strict=True):
        truth(folder, prompt, 20).check(answer)


@pytest.mark.parametrize("kind", [*WINDOWS, *EXPERTS])
@pytest.mark.parametrize(("page_size", "chunk", "stagger"), [(1, 512, 0), (4, 5, 1), (16, 24, 3), (64, 33, 1)])
def test_greedy_tokens_past_several_windows(tiny, truth, drive, make_prompts, kind, page_size, chunk, stagger):
    """Prompts about the window's length and of several windows, whose pages are let go of and used again."""
    folder, window = tiny(kind), WINDOWS.get(kind, 16)
    prompts = make_prompts(1, window - 1, window, window + 1, 2 * window, 70, 5 * window + 3)
    answers = drive(folder, page_size).serve(prompts, new=20, chunk=chunk, budget=90, stagger=stagger)
    for prompt, answer in zip(prompts, answers, strict=True):
        truth(folder, prompt, 20).check(answer)


@pytest.mark.parametrize("stagger", [0, 1, 3])
@pytest.mark.parametrize("budget", [9, 64])
def test_prompts_join_while_others_decode(tiny, truth, drive, make_prompts, stagger, budget):
    folder = tiny("llama")
    prompts = make_prompts(30, 3, 90, 1, 40, 61, seed=5)
    answers = drive(folder, 16).serve(prompts, new=16, chunk=32, budget=budget, stagger=stagger)
    for prompt, answer in zip(prompts, answers, strict=True):
        truth(folder, prompt, 16).check(answer)


def test_pages_saved_by_one_runner_continue_in_another(tiny, truth, drive, make_prompts, page_copy):
    folder, page = tiny("qwen3"), 16
    (prompt,) = make_prompts(50)
    tokens = np.array(prompt, np.int32).tobytes()
    first = drive(folder, page, host=8)
    pages = first.pages(50)
    slot = SlotOpen(0, Sampling(), tokens, 0)
    plan = dict(rows=(Row(0, 0, 50, tokens, False),), opens=(slot,), tables=(TableEdit(0, 0, 0, pages),))
    first.step(**plan)
    saved = first.step(saves=(page_copy(1, pages[:3].tolist(), [6, 1, 4]),))
    assert saved.copies == {1: (True, True, True)}

    second = drive(folder, page, host=8)
    second.arena.memory[:] = first.arena.memory
    mine = second.pages(80)
    rest = tokens[48 * 4 :]
    result = second.step(
        opens=(slot,),
        tables=(TableEdit(0, 0, 0, mine),),
        loads=(page_copy(9, mine[:2].tolist(), [6, 1]), page_copy(8, mine[2:3].tolist(), [4])),
        rows=(Row(0, 48, 2, rest, True),),
    )
    assert result.copies == {9: (True, True), 8: (True,)}
    answer = list(result.tokens[0])
    for at in range(50, 65):
        answer += second.step(rows=(Row(0, at, 1, None, True),)).tokens[0]
    truth(folder, prompt, 16).check(answer)


def test_a_save_reads_what_earlier_steps_wrote_though_this_one_writes_the_page_next(
    tiny, drive, make_prompts, page_copy
):
    """A plan's saves run before its rows: a page that is given away in the same plan is saved as it was."""
    driver = drive(tiny("llama"), 16, host=2)
    one, two = make_prompts(16, 16)
    page = driver.pages(16)

    def plan(slot, prompt):
        tokens = np.array(prompt, np.int32).tobytes()
        opens = (SlotOpen(slot, Sampling(), tokens, 0),)
        return dict(rows=(Row(slot, 0, 16, tokens, False),), opens=opens, tables=(TableEdit(slot, 0, 0, page),))

    driver.step(**plan(0, one))
    driver.step(saves=(page_copy(1, page.tolist(), [0]),))
    driver.step(**plan(1, two), saves=(page_copy(2, page.tolist(), [1]),), closes=(0,))
    first, second = (bytes(driver.arena.memory[driver.arena.stride * i :][: driver.arena.slots(0)[2]]) for i in (0, 1))
    assert first == second
    driver.step(saves=(page_copy(3, page.tolist(), [1]),))
    assert bytes(driver.arena.memory[driver.arena.stride :][: len(first)]) != first


def test_a_copy_that_fails_costs_its_pages_and_nothing_else(tiny, truth, drive, make_prompts, page_copy, caplog):
    folder = tiny("llama")
    driver = drive(folder, 16, host=4)
    (prompt,) = make_prompts(20)
    tokens, pages = np.array(prompt, np.int32).tobytes(), driver.pages(40)
    result = driver.step(
        opens=(SlotOpen(0, Sampling(), tokens, 0),),
        tables=(TableEdit(0, 0, 0, pages),),
        rows=(Row(0, 0, 20, tokens, True),),
        loads=(page_copy(1, driver.pages(32).tolist(), [0, 99]),),
        saves=(page_copy(2, driver.pages(16).tolist(), [77]), page_copy(3, driver.pages(16).tolist(), [3])),
    )
    assert result.copies == {1: (False, False), 2: (False,), 3: (True,)}
    assert result.tokens[0] == truth(folder, prompt, 1).tokens
    assert "a copy of 2 pages failed" in caplog.text


def test_copies_without_a_host_tier_fail_and_say_so(tiny, drive, page_copy):
    driver = drive(tiny("llama"), 16)
    result = driver.step(loads=(page_copy(1, [0], [0]),), saves=(page_copy(2, [1], [0]),))
    assert result.copies == {1: (False,), 2: (False,)}


def test_a_step_that_raises_is_an_error_and_the_next_one_works(tiny, truth, drive, make_prompts):
    folder = tiny("llama")
    driver = drive(folder, 16)
    (prompt,) = make_prompts(20)
    tokens = np.array(prompt, np.int32).tobytes()
    opens = (SlotOpen(0, Sampling(), tokens, 0),)
    one_page = (TableEdit(0, 0, 0, driver.pages(16)),)
    result = driver.step(rows=(Row(0, 0, 20, tokens, True),), opens=opens, tables=one_page, error=True)
    assert "needs a page that its table lacks" in result.error
    assert result.tokens == ()
    driver.step(closes=(0,))
    truth(folder, prompt, 8).check(driver.serve([prompt], new=8)[0])


def test_rows_see_no_strangers_pages(tiny, truth, drive, make_prompts):
    """Whatever lies in other pages, NaN too, a row's answer does not change."""
    folder = tiny("llama")
    driver = drive(folder, 16)
    prompts = make_prompts(3, 40, 90, seed=2)
    (pool,) = driver.runner._opened._pools
    for side in pool.sides:
        side.fill_(float("nan"))
    for page in driver.free[-40:]:
        for side in pool.sides:
            side[:, page] = 0  # the pages that are used next; a last page's tail is read, and masked
    for prompt, answer in zip(prompts, driver.serve(prompts, new=12), strict=True):
        truth(folder, prompt, 12).check(answer)


def test_launch_returns_at_once_and_steps_end_in_order(tiny, drive, make_prompts):
    driver = drive(tiny("llama"), 16)
    (prompt,) = make_prompts(200)
    tokens, pages = np.array(prompt, np.int32).tobytes(), driver.pages(220)
    opens, tables = (SlotOpen(0, Sampling(), tokens, 0),), (TableEdit(0, 0, 0, pages),)
    first = driver.launch(rows=(Row(0, 0, 200, tokens, True),), opens=opens, tables=tables)
    second = driver.launch(rows=(Row(0, 200, 1, None, True),))
    driver.wait(second)
    assert first.poll() is not None


def test_a_closed_runner_ends_its_thread(tiny, drive):
    driver = drive(tiny("llama"), 16)
    worker = driver.runner._opened._worker
    driver.runner.close()
    assert not worker.is_alive()


def test_a_retracted_request_continues_as_if_it_had_not_been(tiny, drive, make_prompts):
    folder = tiny("llama")
    (prompt,) = make_prompts(24)
    hot = Sampling(temperature=1.3, seed=11, top_p=0.95, repetition_penalty=1.1, frequency_penalty=0.3)
    whole = drive(folder, 16).serve([prompt], new=20, sampling=hot)[0]
    driver = drive(folder, 16)
    again = np.array(prompt + whole[:9], np.int32).tobytes()
    result = driver.step(
        opens=(SlotOpen(3, hot, again, 9),),
        tables=(TableEdit(3, 0, 0, driver.pages(60)),),
        rows=(Row(3, 0, 33, again, True),),
    )
    answer = list(result.tokens[0])
    for at in range(33, 43):
        answer += driver.step(rows=(Row(3, at, 1, None, True),)).tokens[0]
    assert answer == whole[9:]


def test_a_seed_gives_the_same_answer_in_any_company(tiny, drive, make_prompts):
    folder = tiny("llama")
    prompts = make_prompts(24, 9, 33)
    hot = Sampling(temperature=1.0, seed=5, top_k=40)
    others = [hot, Sampling(), Sampling(temperature=2.0)]
    alone = drive(folder, 16).serve(prompts[:1], new=16, sampling=hot)[0]
    assert drive(folder, 16).serve(prompts, new=16, sampling=others)[0] == alone
    assert drive(folder, 16).serve(prompts[:1], new=16, sampling=Sampling(temperature=1.0, seed=6))[0] != alone


def test_logprobs_are_the_models_own(tiny, truth, drive, make_prompts):
    folder = tiny("llama")
    prompts = make_prompts(12, 20)
    driver = drive(folder, 16)
    rows, opens, tables = [], [], []
    for slot, (prompt, sampling) in enumerate(zip(prompts, (Sampling(logprobs=3), Sampling()), strict=True)):
        tokens = np.array(prompt, np.int32).tobytes()
        opens.append(SlotOpen(slot, sampling, tokens, 0))
        tables.append(TableEdit(slot, 0, 0, driver.pages(64)))
        rows.append(Row(slot, 0, len(prompt), tokens, True))
    result = driver.step(rows=tuple(rows), opens=tuple(opens), tables=tuple(tables))
    assert result.logprobs[1] == ()
    (found,) = result.logprobs[0]
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        want = torch.log_softmax(model(torch.tensor([prompts[0]])).logits[0, -1], -1)
    best = want.topk(3)
    assert [token for token, _ in found.top] == best.indices.tolist()
    assert [value for _, value in found.top] == pytest.approx(best.values.tolist(), abs=1e-4)
    assert found.logprob == pytest.approx(float(best.values[0]), abs=1e-4)


def test_bfloat16_runs_and_is_told(tiny, drive, make_prompts):
    driver = drive(tiny("llama"), 16, dtype="bfloat16")
    assert driver.runner.model.kv_dtype == "bfloat16"
    assert driver.runner.groups[0].token_bytes == 2 * 2 * 2 * 16 * 2
    assert len(driver.serve(make_prompts(20), new=8)[0]) == 8


def test_what_the_rest_must_know_of_a_model(tiny, drive):
    runner = drive(tiny("qwen3"), 16).runner
    assert (runner.model.context, runner.model.vocab, runner.model.eos) == (512, 300, ())
    assert runner.groups[0].token_bytes == 3 * 2 * 2 * 32 * 4
    assert runner.groups[0].layers == (0, 1, 2)
    assert runner.preferred_chunk == 256
    assert runner.budget() is None


def test_prompt_chunks_do_not_sample(tiny, drive, make_prompts):
    driver = drive(tiny("llama"), 16)
    (prompt,) = make_prompts(32)
    tokens = np.array(prompt, np.int32).tobytes()
    opens, tables = (SlotOpen(0, Sampling(), tokens, 0),), (TableEdit(0, 0, 0, driver.pages(64)),)
    result = driver.step(rows=(Row(0, 0, 16, tokens[:64], False),), opens=opens, tables=tables)
    assert result.tokens == ((),)
    assert len(driver.step(rows=(Row(0, 16, 16, tokens[64:], True),)).tokens[0]) == 1
