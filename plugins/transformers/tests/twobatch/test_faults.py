"""Steps of two halves that fail, lose a load, or lose a request."""

from __future__ import annotations

import numpy as np
import pytest

from stepwell import PeerLost, Row, Sampling, SlotOpen, TableEdit

CALLS = ("dispatch_start", "dispatch_finish", "combine_start", "combine_finish")


def opened(driver, prompts):
    """What opens a slot for each prompt, with pages for all of it and an answer."""
    tokens = [np.array(prompt, np.int32).tobytes() for prompt in prompts]
    return dict(
        opens=tuple(SlotOpen(slot, Sampling(), own, 0) for slot, own in enumerate(tokens)),
        tables=tuple(TableEdit(slot, 0, 0, driver.pages(len(own) // 4 + 12)) for slot, own in enumerate(tokens)),
        rows=tuple(Row(slot, 0, len(own) // 4, own, True) for slot, own in enumerate(tokens)),
    )


class Breaks:
    """Raises in the n-th call of a kind, once it is armed."""

    def __init__(self, call, number):
        self.call, self.left, self.armed = call, number, False

    def __call__(self, rank, call):
        if self.armed and call == self.call:
            self.left -= 1
            if self.left < 0:
                raise ValueError(f"{call} broke")


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("call", CALLS)
def test_a_fault_at_any_turn_of_either_half_ends_the_runner_and_nothing_is_computed_behind_it(
    ranks, new_wires, make_prompts, call, number
):
    """In the first layer and the second; what waits for the step is told, and the executor still closes."""
    breaks = Breaks(call, number)
    served = ranks("qwen3-moe", new_wires(1, fail=breaks), overlap=2)
    (driver,) = served.drivers
    breaks.armed = True
    with pytest.raises(PeerLost, match=f"on their way to experts.*{call} broke"):
        driver.step(**opened(driver, make_prompts(20, 9)))
    breaks.armed = False
    with pytest.raises(PeerLost):
        driver.step(rows=(Row(0, 20, 1, None, True), Row(1, 9, 1, None, True)))


@pytest.mark.parametrize("slot", [0, 1])
def test_rows_that_lack_a_page_fail_before_anything_is_sent_and_the_next_step_works(
    ranks, new_wires, truth, experts_model, make_prompts, slot
):
    """Whichever half they are in."""
    prompts = make_prompts(20, 22)
    served = ranks("qwen3-moe", new_wires(1), overlap=2)
    (driver,) = served.drivers
    before = len(served.wires.calls[0])
    plan = opened(driver, prompts)
    tables = [edit for edit in plan["tables"] if edit.slot != slot]
    assert "needs a page" in driver.step(**plan | dict(tables=tuple(tables)), error=True).error
    assert len(served.wires.calls[0]) == before
    driver.step(closes=(0, 1))
    truth(experts_model("qwen3-moe"), prompts[0], 6).check(driver.serve(prompts[:1], new=6)[0])


def test_loads_are_done_once_a_layer_and_one_that_fails_costs_its_pages(
    ranks, new_wires, truth, experts_model, make_prompts, page_copy, monkeypatch
):
    """A prompt whose beginning is loaded is cut: both halves wait for each layer's pages, which come once."""
    (prompt,) = make_prompts(60)
    tokens = np.array(prompt, np.int32).tobytes()
    served = ranks("mixtral", new_wires(1), overlap=2)
    (driver,) = served.drivers
    executor = driver.runner._executor
    pages, slot = driver.pages(80), SlotOpen(0, Sampling(), tokens, 0)
    table = TableEdit(0, 0, 0, pages)
    driver.step(opens=(slot,), tables=(table,), rows=(Row(0, 0, 60, tokens, False),))
    assert all(driver.step(saves=(page_copy(1, pages[:5].tolist(), range(5)),)).copies[1])
    fresh = driver.pages(80)
    loads, own = [], executor._load

    def load(copy, index):
        loads.append((copy.id, index))
        return (copy.id, index) != (8, 1) and own(copy, index)

    monkeypatch.setattr(executor, "_load", load)
    result = driver.step(
        closes=(0,),
        opens=(SlotOpen(1, Sampling(), tokens, 0),),
        tables=(TableEdit(1, 0, 0, fresh),),
        loads=(page_copy(9, fresh[:5].tolist(), range(5)), page_copy(8, driver.pages(4).tolist(), [0])),
        rows=(Row(1, 20, 40, tokens[80:], True),),
    )
    assert result.copies == {9: (True,) * 5, 8: (False,)}
    # Behind a copy that has failed its further layers are not tried.
    assert loads == [(9, 0), (8, 0), (9, 1), (8, 1), (9, 2)]
    answer = list(result.tokens[0])
    for at in range(60, 64):
        answer += driver.step(rows=(Row(1, at, 1, None, True),)).tokens[0]
    truth(experts_model("mixtral"), prompt, 5).check(answer)


def test_requests_that_are_aborted_between_steps_cost_the_others_nothing(
    ranks, new_wires, truth, experts_model, make_prompts
):
    """Two steps in flight; halves of three, of two, and at last of one row, which is no pair."""
    prompts = make_prompts(20, 31, 12, 25)
    served = ranks("deepseek-v3", new_wires(2), overlap=2)

    def run(driver):
        flights = [driver.launch(**opened(driver, prompts))]
        alive, answers = [0, 1, 2, 3], {slot: [] for slot in range(4)}
        riders = [tuple(alive)]
        for turn, aborted in enumerate((3, None, 1, 0, None)):
            closes = () if aborted is None else (aborted,)
            alive = [slot for slot in alive if slot != aborted]
            rows = tuple(Row(slot, len(prompts[slot]) + turn, 1, None, True) for slot in alive)
            flights.append(driver.launch(closes=closes, rows=rows))
            riders.append(tuple(alive))
        for step, slots in zip(flights, riders, strict=True):
            for slot, tokens in zip(slots, driver.wait(step).tokens, strict=True):
                answers[slot] += tokens
        return answers

    first, second = served.call(run)
    assert first == second
    for slot, answer in first.items():
        truth(experts_model("deepseek-v3"), prompts[slot], len(answer)).check(answer)
    assert [len(answer) for answer in first.values()] == [4, 3, 6, 1]
