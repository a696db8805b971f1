"""What a step's buffers say of its rows."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell_kernels.paged import StepBuffers, StepShape, Tables

CUDA = torch.cuda.is_available()
DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not CUDA, reason="this machine has no CUDA device")]
    ),
]
IDLE = 77


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=60, deadline=None)
@given(
    decodes=st.lists(st.integers(0, 900), max_size=5),
    prompts=st.lists(st.tuples(st.integers(0, 90), st.sampled_from([0, 2, 3, 60])), max_size=3),
    idle=st.tuples(st.integers(0, 3), st.integers(0, 9)),
)
def test_a_step_says_where_each_token_stands(device, decodes, prompts, idle):
    rows = [(number, start, 1) for number, start in enumerate(decodes)]
    rows += [(40 + number, *row) for number, row in enumerate(prompts)]
    tokens = sum(count for _, _, count in rows) + sum(idle)
    buffers = StepBuffers(device, 16, 400, IDLE)
    buffers.fill([(5, 3, 1), (6, 1, 200)], 2, 201)  # what an earlier step leaves must not show
    shape = buffers.fill(rows, len(rows) + idle[0], tokens)
    assert shape == StepShape(len(decodes) + idle[0], len(prompts), tokens)
    step = buffers.step(shape)
    padded = [*rows[: len(decodes)], *[(IDLE, 0, 0)] * idle[0], *rows[len(decodes) :]]
    assert torch.stack([step.slots, step.starts, step.counts], 1).tolist() == [list(row) for row in padded]
    slots, positions, begins = [], [], []
    for at, (slot, start, count) in enumerate(padded):
        begins.append(len(slots))
        own = 1 if at < shape.decodes else count
        slots += [slot] * own
        positions += list(range(start, start + own))
    assert step.begins.tolist() == begins
    assert step.token_slots.tolist() == slots + [IDLE] * idle[1]
    assert step.positions.tolist() == positions + [0] * idle[1]
    for at, (_, _, count) in enumerate(padded):
        assert 0 <= step.last[at] < max(tokens, 1)
        if count:
            assert step.last[at] == begins[at] + count - 1


def test_views_of_a_shape_never_move():
    buffers = StepBuffers("cpu", 8, 100, IDLE)
    first = buffers.step(buffers.fill([(1, 2, 1), (3, 4, 5)], 4, 20))
    pointers = [first.slots.data_ptr(), first.positions.data_ptr(), first.last.data_ptr()]
    assert all(pointer % 16 == 0 for pointer in pointers)
    buffers.fill([(1, 2, 1)], 1, 1)
    again = buffers.step(buffers.fill([(2, 9, 1), (4, 4, 7)], 4, 20))
    assert [again.slots.data_ptr(), again.positions.data_ptr(), again.last.data_ptr()] == pointers
    assert again.slots.tolist() == [2, IDLE, IDLE, 4]


def test_a_step_that_does_not_fit_is_refused():
    buffers = StepBuffers("cpu", 4, 10, IDLE)
    for rows, padded in (([(0, 0, 1)] * 5, (5, 5)), ([(0, 0, 11)], (1, 11)), ([(0, 0, 6)], (1, 5))):
        with pytest.raises(ValueError, match="does not fit"):
            buffers.fill(rows, *padded)


@pytest.mark.gpu
@pytest.mark.skipif(not CUDA, reason="this machine has no CUDA device")
def test_no_copy_reads_what_a_later_step_packs():
    buffers = StepBuffers("cuda", 4, 4, IDLE)
    torch.cuda._sleep(50_000_000)
    seen = []
    for start in range(12):
        shape = buffers.fill([(1, start, 1)], 1, 1)
        seen.append(buffers.step(shape).starts.clone())
    assert [int(one) for one in seen] == list(range(12))


def test_tables_refuse_what_no_kernel_could_read():
    pages = torch.full((3, 4), -1, dtype=torch.int32)
    assert Tables(pages, 16, window=5).sees == ("window", 5)
    assert Tables(pages, 16).idle == 2
    for wrong in (pages.long(), pages.T, pages[0]):
        with pytest.raises(ValueError, match="page tables"):
            Tables(wrong, 16)
    with pytest.raises(ValueError, match="window or a chunk"):
        Tables(pages, 16, window=1, chunk=2)
