"""What is made of the answers of several ranks, and what no rank can answer."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from stepwell.abc.runner import ModelInfo, PageCopy, Row, SlotOpen, StepPlan, StepResult, TableEdit
from stepwell.engine.ranks import wire
from stepwell.engine.ranks.combine import Expected, Split, agreed, combined, savers, seeded, share
from stepwell.engine.ranks.wire import GroupText, Made, Nonsense, Result
from stepwell.types import Chunked, Full, GroupSpec, Sampling, TokenLogprob, Window

GROUPS = (GroupSpec("heads", Full(), 64, (0,), 2, 2), GroupSpec("latent", Window(7), 64, (1,)))


def ids(*pages: int) -> np.ndarray:
    return np.array(pages, np.int32)


PLAN = StepPlan(
    7,
    (Row(0, 3, 2, ids(5, 6).tobytes(), True), Row(1, 0, 4, ids(1, 2, 3, 4).tobytes(), False)),
    (SlotOpen(1, Sampling(temperature=0.5, stop_ids=(3,)), ids(1, 2, 3, 4).tobytes(), 1),),
    (2, 3),
    (TableEdit(0, 1, 4, ids(9, -1)),),
    (PageCopy(10, 0, ids(1, 2), ids(3, 4)),),
    (PageCopy(11, 0, ids(5), ids(6)), PageCopy(12, 1, ids(7), ids(8)), PageCopy(13, 1, ids(9), ids(1))),
    2,
)
EXPECTED = Expected.of(PLAN, GROUPS, 2)
GOOD = Result(7, 2, ((4, 5), ()), {10: b"\1\1", 11: b"\1", 12: b"\1", 13: b"\1"})
"""Too much: each of the last two saves is one rank's."""


def mine(rank: int, **changes: object) -> Result:
    other = 13 if rank == 0 else 12
    copies = {id: pages for id, pages in GOOD.copies.items() if id != other}
    return Result(**{"number": 7, "steps": 2, "tokens": GOOD.tokens, "copies": copies, **changes})  # type: ignore[arg-type]


def replace_copies(answer: Result, copies: dict[int, bytes]) -> Result:
    return msgspec.structs.replace(answer, copies=copies)


def test_a_plan_arrives_as_it_was_sent() -> None:
    came = wire.unpacked(wire.packed(PLAN))
    assert (came.number, came.rows, came.opens, came.closes, came.horizon) == (7, PLAN.rows, PLAN.opens, (2, 3), 2)
    assert [(edit.slot, edit.group, edit.first, edit.pages.tolist()) for edit in came.tables] == [(0, 1, 4, [9, -1])]
    copies = [(copy.id, copy.group, copy.device.tolist(), copy.host.tolist()) for copy in came.loads + came.saves]
    assert copies == [(10, 0, [1, 2], [3, 4]), (11, 0, [5], [6]), (12, 1, [7], [8]), (13, 1, [9], [1])]


def test_an_answer_arrives_as_it_was_given_log_probabilities_from_one_rank() -> None:
    logprobs = ((TokenLogprob(-1.0, ((4, -1.0),)),), ())
    said = StepResult(7, 2, ((4, 5), ()), logprobs, {10: (True, False)})
    came = wire.result(wire.answer(said, logprobs=True))
    assert (came.tokens, came.logprobs, came.copies) == (said.tokens, logprobs, {10: b"\1\0"})
    assert wire.result(wire.answer(said, logprobs=False)).logprobs is None
    with pytest.raises(Nonsense):
        wire.result(b"\x93abc")


def test_one_rank_saves_what_all_hold() -> None:
    shares = [share(PLAN, GROUPS, rank, 2) for rank in (0, 1)]
    assert [[save.id for save in one.saves] for one in shares] == [[11, 12], [11, 13]]
    assert [len(one.loads) for one in shares] == [1, 1]
    assert share(PLAN, GROUPS, 0, 2, own=True) is PLAN
    assert [list(who) for _, who in Expected.of(PLAN, GROUPS, 2, own=True).saves.values()] == [[0, 1]] * 3
    for id in range(6):
        assert list(savers(PageCopy(id, 1, ids(), ids()), GROUPS, 4)) == [id % 4]


def test_a_page_counts_if_it_is_there_on_every_rank_that_took_part() -> None:
    whole = combined(EXPECTED, [mine(0), mine(1)], late_saves=False)
    assert (whole.number, whole.steps, whole.tokens) == (7, 2, ((4, 5), ()))
    assert whole.copies == {10: (True, True), 11: (True,), 12: (True,), 13: (True,)}
    half = mine(1, copies={10: b"\1\0", 13: b"\0"})
    assert combined(EXPECTED, [mine(0), half], late_saves=False).copies == {
        10: (True, False),
        12: (True,),
        13: (False,),
    }
    assert set(combined(EXPECTED, [mine(0), mine(1)], late_saves=True).copies) == {10}


def test_ranks_that_did_not_do_the_same_are_told_apart() -> None:
    for strange, why in (
        (mine(1, tokens=((4, 6), ())), "rank 1 sampled other tokens than rank 0 in step 7"),
        (mine(1, error="full"), "rank 1 failed in step 7 where others did not: full"),
        (mine(1, steps=1, tokens=((4,), ())), "rank 1 did 1 steps and rank 0 did 2 of plan 7"),
    ):
        with pytest.raises(Split, match=why):
            combined(EXPECTED, [mine(0), strange], late_saves=False)
    other = mine(1, tokens=((4, 6), ()))
    assert combined(EXPECTED, [mine(0), other], late_saves=False, doubtful=True).tokens == GOOD.tokens
    unloaded = replace_copies(other, {10: b"\1\0", 11: b"\1", 13: b"\1"})
    assert combined(EXPECTED, [mine(0), unloaded], late_saves=False).copies[10] == (True, False)
    failed = combined(EXPECTED, [mine(0, error="no"), mine(1, error="yes")], late_saves=False)
    assert failed.error == "no"


@pytest.mark.parametrize(
    "answer",
    [
        mine(0, number=8),
        mine(0, steps=3),
        mine(0, steps=0),
        mine(0, tokens=((4, 5),)),
        mine(0, tokens=((4,), ())),
        mine(0, tokens=((4, 5), (1, 1))),
        mine(0, copies={10: b"\1"}),
        mine(0, copies={99: b"\1"}),
        GOOD,
    ],
)
def test_what_no_rank_can_answer_is_nonsense(answer: Result) -> None:
    EXPECTED.check(mine(0), 0)
    with pytest.raises(Nonsense):
        EXPECTED.check(answer, 0)


def test_only_what_is_drawn_without_a_seed_gets_one() -> None:
    (opened,) = seeded(PLAN).opens
    assert opened.sampling.seed is not None and replace(opened.sampling, seed=None) == PLAN.opens[0].sampling
    for sampling in (Sampling(), Sampling(temperature=1.0, seed=4)):
        plan = replace(PLAN, opens=(replace(PLAN.opens[0], sampling=sampling),))
        assert seeded(plan) is plan


def test_ranks_are_of_one_model_and_have_the_least_of_all() -> None:
    model = ModelInfo("m", "f", "bf16", "1", 100, 10, (1, 2))
    groups = (*GROUPS, GroupSpec("chunks", Chunked(8), 8, (3,)))
    first = Made(model, tuple(map(GroupText.of, groups)), 512, 2, 4, True, 1000)
    assert wire.decoded(wire.encode(first), Made).groups == groups
    both = agreed([first, Made(model, first.texts, 256, 3, 2, True, 900)])
    assert (both.preferred_chunk, both.depth, both.max_steps, both.budget) == (256, 2, 2, 900)
    with pytest.raises(Split, match="rank 1 has another model"):
        agreed([first, Made(replace(model, fingerprint="g"), first.texts, 512, 2, 4, True, None)])
    with pytest.raises(Split, match="group heads lies on 2 of 3 ranks"):
        agreed([first] * 3)
