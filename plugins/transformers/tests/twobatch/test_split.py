"""Two halves of a step: what is in them, what they say together, and when there are none."""

from __future__ import annotations

from dataclasses import fields
from itertools import product

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell import Row, StepPlan
from stepwell_transformers.twobatch.decide import Size, Way, decide
from stepwell_transformers.twobatch.split import PART, PLAN, ROW, Splits, cut, largest, split


def prompt(slot: int, start: int, count: int, sample: bool = True) -> Row:
    return Row(slot, start, count, np.arange(start, start + count, dtype=np.int32).tobytes(), sample)


def decodes(count: int) -> tuple[Row, ...]:
    return tuple(Row(slot, 7 + slot, 1, None, True) for slot in range(count))


def places(rows: tuple[Row, ...]) -> list[tuple[int, int]]:
    """Slot and position of every token."""
    return [(row.slot, row.start + at) for row in rows for at in range(row.count)]


def brought(rows: tuple[Row, ...]) -> list[int]:
    return [token for row in rows if row.tokens for token in np.frombuffer(row.tokens, np.int32).tolist()]


ROWS = st.lists(
    st.tuples(st.integers(0, 50), st.sampled_from([1, 1, 2, 3, 4, 7, 40, 300]), st.booleans()), min_size=1, max_size=9
).map(
    lambda found: tuple(
        prompt(slot, start, count, sample) if count > 1 else Row(slot, start, 1, None, True)
        for slot, (start, count, sample) in enumerate(found)
    )
)


@given(ROWS)
def test_the_halves_are_the_step_in_its_order(rows):
    halves = split(rows)
    size = Size.of(rows)
    if halves is None:
        assert not size.splits
        return
    assert halves.first
    assert halves.second
    both = (*halves.first, *halves.second)
    assert places(both) == places(rows)
    assert brought(both) == brought(rows)
    assert [row.slot for row in both if row.sample] == [row.slot for row in rows if row.sample]
    assert halves.most <= largest(size.most, prefill=size.prefill)
    if halves.cut:
        assert min(halves.first[-1].count, halves.second[0].count) >= PART
        assert halves.first[-1].slot == halves.second[0].slot


@given(ROWS, st.integers(0, 400))
def test_a_bound_of_halves_holds_for_smaller_steps_of_other_ranks(rows, more):
    halves, size = split(rows), Size.of(rows)
    if halves is not None:
        assert halves.most <= largest(size.most + more, prefill=size.prefill)


def test_decodes_are_split_by_requests():
    halves = split(decodes(7))
    assert [len(halves.first), len(halves.second), halves.cut] in ([3, 4, False], [4, 3, False])


def test_a_long_prompt_is_cut_in_its_middle_and_a_fair_boundary_is_kept():
    halves = split((*decodes(2), prompt(5, 10, 98)))
    assert [row.count for row in halves.first] == [1, 1, 48]
    assert [(row.slot, row.start, row.count, row.sample) for row in halves.second] == [(5, 58, 50, True)]
    assert not halves.first[-1].sample
    assert not split((prompt(0, 0, 51), prompt(1, 0, 49))).cut


@pytest.mark.parametrize("rows", [(), decodes(1), (prompt(0, 0, 3),)])
def test_no_half_is_empty(rows):
    assert split(rows) is None


def test_b109_every_field_of_a_step_says_how_it_splits():
    """A field that is added to a row or a plan fails here until it has a rule."""
    assert set(ROW) == set(Row.__struct_fields__)
    assert set(PLAN) == {field.name for field in fields(StepPlan)}
    assert [name for name, how in PLAN.items() if how is Splits.ROWS] == ["rows"]


def test_b109_a_new_field_without_a_rule_is_in_both_parts():
    class Wider(Row, frozen=True, gc=False, array_like=True):
        note: str = ""

    assert set(Wider.__struct_fields__) - set(ROW) == {"note"}
    row = msgspec.convert((3, 5, 6, np.arange(6, dtype=np.int32).tobytes(), True, "n"), Wider)
    one, other = cut(row, 2)
    assert (one.note, other.note) == ("n", "n")
    assert (one.count, other.count, one.start, other.start) == (2, 4, 5, 7)


@pytest.mark.parametrize("real", [0, 1])
def test_b109_padding_is_no_row_so_that_a_lone_request_has_no_second_half(real):
    """One request and one that only pads: ids of the halves would be [r1] and []."""
    assert split(decodes(real)) is None
    assert not Size.of(decodes(real)).splits


def test_b109_three_requests_of_four_places():
    halves = split(decodes(3))
    assert sorted([len(halves.first), len(halves.second)]) == [1, 2]


GRAPH = 128
B107 = {
    (64, 128): ((32, 32), (64, 64), Way.GRAPH),
    (63, 128): ((32, 31), (64, 64), Way.GRAPH),
    (65, 128): ((33, 32), (64, 64), Way.GRAPH),
    (128, 128): ((64, 64), (64, 64), Way.GRAPH),
    (1, 2): (None, (1, 1), Way.WHOLE),
    (0, 128): (None, (64, 64), Way.WHOLE),
}
"""By decodes of two ranks: what halves each would have, and what both do."""


@pytest.mark.parametrize("tokens", B107)
def test_b107_no_rank_replays_an_empty_half(tokens):
    expected = B107[tokens]
    for count, halves in zip(tokens, expected[:2], strict=True):
        found = split(decodes(count))
        assert (found and tuple(sorted((len(found.first), len(found.second)), reverse=True))) == halves
        if found is not None:
            assert found.most <= GRAPH // 2
    size = Size(min(tokens), max(tokens), False)
    assert decide(size, wanted=True, graph=True) is expected[2]


B111 = {
    "all decode, uniform": ((decodes(8)), Way.GRAPH, Way.EAGER),
    "all decode, ragged": (tuple(prompt(slot, 9, 2 + slot % 2) for slot in range(8)), Way.EAGER, Way.EAGER),
    "mixed": ((*decodes(6), prompt(9, 0, 30)), Way.EAGER, Way.EAGER),
    "all prefill": ((prompt(0, 0, 20), prompt(1, 4, 30)), Way.EAGER, Way.EAGER),
}
"""What a step is, with a graph for its decodes and without one."""


@pytest.mark.parametrize(("kind", "graph"), list(product(B111, [True, False])))
def test_b111_only_uniform_decodes_take_the_graph(kind, graph):
    rows, with_graph, without = B111[kind]
    assert decide(Size.of(rows), wanted=True, graph=graph) is (with_graph if graph else without)
    assert decide(Size.of(rows), wanted=False, graph=graph) is Way.WHOLE


def test_b111_one_rank_with_a_prompt_takes_all_of_them_off_the_graph():
    assert decide(Size(8, 90, True), wanted=True, graph=True) is Way.EAGER


@pytest.mark.parametrize("lengths", [([5, 3], [4, 4, 4]), ([1], [1] * 6)])
def test_b117_tokens_of_the_halves_are_those_of_their_rows(lengths):
    """Ranks of other sizes: nothing is padded up to another rank, so that lengths and tokens always agree."""
    for own in lengths:
        rows = tuple(prompt(slot, 0, count) if count > 1 else decodes(6)[slot] for slot, count in enumerate(own))
        halves = split(rows)
        for half in (halves.first, halves.second) if halves else (rows,):
            assert sum(row.count for row in half) == len(places(half))
        if halves:
            assert sum(row.count for row in (*halves.first, *halves.second)) == sum(own)
    size = Size(min(map(sum, lengths)), max(map(sum, lengths)), any(count > 1 for own in lengths for count in own))
    assert decide(size, wanted=True, graph=True) is (Way.EAGER if size.least > 1 else Way.WHOLE)
