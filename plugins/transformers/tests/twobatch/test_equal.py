"""Halves that take turns say what halves one after the other say, bit by bit, and what the model says by itself."""

from __future__ import annotations

import pytest
import torch

import stepwell

FAMILIES = ("qwen3-moe", "mixtral", "deepseek-v3")
LENGTHS = (1, 30, 47, 5, 18)


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_bits_are_those_of_halves_one_after_the_other(
    ranks, new_wires, make_prompts, one_after_the_other, family, size
):
    """Chunks that are cut, decodes beside prompts, decodes alone; on one rank and on two."""
    asked = dict(new=8, chunk=40, budget=60, stagger=1)
    overlapped = ranks(family, new_wires(size), overlap=2)
    answers = overlapped.serve(make_prompts(*LENGTHS), **asked)
    taken = [call.split()[0] for call in overlapped.wires.calls[0]]
    one_after_the_other()
    serial = ranks(family, new_wires(size), overlap=2)
    assert serial.serve(make_prompts(*LENGTHS), **asked) == answers
    for mine, theirs in zip(overlapped.logits, serial.logits, strict=True):
        assert len(mine) == len(theirs)
        assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))
    assert taken != [call.split()[0] for call in serial.wires.calls[0]]
    assert sorted(taken) == sorted(call.split()[0] for call in serial.wires.calls[0])


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_answers_are_those_of_generate(ranks, new_wires, truth, experts_model, make_prompts, family):
    prompts = make_prompts(*LENGTHS, seed=3)
    served = ranks(family, new_wires(2), overlap="auto" if family == "mixtral" else 2)
    for prompt, answer in zip(prompts, served.serve(prompts, new=10, chunk=32, stagger=1), strict=True):
        truth(experts_model(family), prompt, 10).check(answer)


def test_b118_never_more_than_two_batches_in_flight_and_in_one_order_on_all_ranks(ranks, new_wires, make_prompts):
    """A dispatch of one half and a combine of the other are under way together; a third would be refused."""
    served = ranks("qwen3-moe", new_wires(2), overlap=2)
    before = {rank: len(calls) for rank, calls in served.wires.calls.items()}
    served.serve(make_prompts(20), new=1)
    calls = {rank: calls[before[rank] :] for rank, calls in served.wires.calls.items()}
    assert calls[0] == calls[1]
    numbers = [call.split() for call in calls[0]]
    layer = ["dispatch_start", "dispatch_start", "dispatch_finish", "combine_start", "dispatch_finish", "combine_start"]
    assert [what for what, _ in numbers[:6]] == layer
    both = [at for at in range(len(numbers) - 1) if numbers[at][0] == "dispatch_start" and at > 5]
    assert any(numbers[at - 1][0] == "combine_finish" and numbers[at + 1][0] == "combine_finish" for at in both)


def test_a_dispatcher_of_one_batch_is_refused_by_a_number_and_done_without_by_auto(ranks, new_wires, make_prompts):
    with pytest.raises(Exception, match="takes 1 batch at a time"):
        ranks("qwen3-moe", new_wires(1, in_flight=1), overlap=2)
    served = ranks("qwen3-moe", new_wires(1, in_flight=1), overlap="auto")
    assert len(served.serve(make_prompts(9), new=3)[0]) == 3


def test_an_engine_of_two_ranks_over_gloo_says_what_generate_says(experts_model, truth, make_prompts):
    """Processes, and the dispatcher that comes with the kernels; sizes as measured."""
    folder, prompts = experts_model("qwen3-moe"), make_prompts(60, 75, 40, 33)
    runner = {"model": str(folder), "device": "cpu", "dtype": "float32", "dispatch": "collective", "overlap": "auto"}
    with stepwell.Engine(
        runner={"use": "transformers", **runner},
        cache={"page_size": 4, "device_pages": 200},
        engine={"chunk": 48},
        ranks={"tp": 2},
    ) as engine:
        for prompt, answer in zip(prompts, engine.generate(prompts, max_tokens=16, ignore_eos=True), strict=True):
            truth(folder, prompt, 16).check(answer.tokens)
