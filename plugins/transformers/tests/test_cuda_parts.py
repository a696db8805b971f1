"""Parts of the executor for CUDA: copies in lanes that are only written down, rows, shapes, tables."""

import logging
from contextlib import nullcontext

import numpy as np
import pytest
import torch

from stepwell import GroupSpec, PageCopy, Row, Sampling, SlotOpen, StepPlan, TableEdit
from stepwell.types import Full, Window
from stepwell_kernels.paged import StepShape
from stepwell_transformers.cuda.buckets import fit, shapes
from stepwell_transformers.cuda.lanes import Lane, Lanes
from stepwell_transformers.cuda.lineup import line_up
from stepwell_transformers.cuda.state import SlotState
from stepwell_transformers.cuda.transfers import Transfers
from stepwell_transformers.paging import Seat

LOG = logging.getLogger("stepwell.transformers")


class Written(Lane):
    """Writes down what is enqueued, in one book for all lanes."""

    def __init__(self, name, book):
        self.name, self.book, self.marks = name, book, 0

    def enqueue(self):
        return nullcontext()

    def mark(self, anew=None):
        self.marks += 1
        self.book.append((self.name, "mark", anew or self.marks))
        return anew or Place(self.name, self.marks)

    def follow(self, mark):
        self.book.append((self.name, "follow", mark))


class Place(tuple):
    def __new__(cls, lane, number):
        return super().__new__(cls, (lane, number))

    def synchronize(self):
        pass


class NotedMover:
    """A mover that writes down what it is asked."""

    def __init__(self, group, book, faults=()):
        self.group, self.book, self.faults = group, book, faults

    def pairs(self, device, host):
        if "pairs" in self.faults:
            raise IndexError("no such page")
        if max(host, default=0) > 90:
            raise IndexError("no such slot")
        self.book.append(("pairs", self.group, len(device)))
        return (device, host)

    def load_layer(self, layer, pairs):
        self.book.append(("load", self.group, layer))
        if layer in self.faults:
            raise RuntimeError("the copy broke")

    def save(self, pairs):
        self.book.append(("save", self.group))


def copy(number, group=0, pages=2):
    return PageCopy(number, group, np.arange(pages, dtype=np.int32), np.arange(pages, dtype=np.int32))


SEATS = {0: Seat(0, 0), 1: Seat(1, 0), 2: Seat(0, 1), 3: Seat(1, 1)}
"""Layers of two groups in turn."""


def transfers(book, faults=({}, {}), **gates):
    made = Transfers(
        SEATS, Lanes(Written("compute", book), Written("loads", book), Written("saves", book), **gates), LOG
    )
    made.pin([NotedMover(group, book, broken) for group, broken in enumerate(faults)])
    return made


# --- copies ----------------------------------------------------------------------------------------------------


def test_a_layer_waits_for_its_own_copy_alone():
    book = []
    loading = transfers(book).load([copy(1, 0), copy(2, 1)])
    assert [entry for entry in book if entry[0] == "load"] == [
        ("load", 0, 0),
        ("load", 1, 0),
        ("load", 0, 1),
        ("load", 1, 1),
    ]
    compute = Written("compute", book)
    for layer in SEATS:
        book.clear()
        loading.hold(compute, layer)
        assert book == [("compute", "follow", ("loads", layer + 1))]  # the mark behind this layer's copy


def test_a_layer_of_which_nothing_is_loaded_waits_for_nothing():
    book = []
    loading = transfers(book).load([copy(1, 1)])
    book.clear()
    compute = Written("compute", book)
    for layer in (0, 2):
        loading.hold(compute, layer)
    assert book == []
    loading.hold_all(compute)
    assert book == [("compute", "follow", ("loads", 3))]  # behind both layers' marks


def test_copies_of_one_group_go_together_and_one_that_cannot_go_costs_the_others_nothing(caplog):
    book, wrong = [], PageCopy(5, 0, np.array([1], np.int32), np.array([99], np.int32))
    saving, _ = transfers(book).save([copy(1, 0), copy(2, 1), copy(3, 0, 3)], None)
    assert [entry for entry in book if entry[0] == "pairs"] == [("pairs", 0, 5), ("pairs", 1, 2)]
    assert len([entry for entry in book if entry[0] == "save"]) == 2
    assert saving.results() == {1: (True,) * 2, 2: (True,) * 2, 3: (True,) * 3}
    saving, _ = transfers(book).save([copy(1, 0), wrong, copy(3, 0, 3)], None)
    assert saving.results() == {1: (True,) * 2, 5: (False,), 3: (True,) * 3}
    assert "a copy of 1 pages failed: no such slot" in caplog.text


def test_what_graphs_wait_for_is_set_behind_each_load_into_its_layer():
    book, gates = [], {layer: f"gate {layer}" for layer in SEATS}
    moves = transfers(book, gates=gates)
    for _ in range(2):
        book.clear()
        moves.load([copy(1, 1)])
        assert [entry[2] for entry in book if entry[1] == "mark"][:2] == ["gate 1", "gate 3"]
        assert book.index(("load", 1, 0)) < book.index(("loads", "mark", "gate 1")) < book.index(("load", 1, 1))


def test_b043_saves_wait_for_the_step_that_wrote_their_pages_and_no_step_for_them():
    """And a load waits for nothing: it starts while the step before runs."""
    book = []
    moves = transfers(book)
    compute = Written("compute", book)
    moves.save([copy(1)], compute.mark())
    moves.load([copy(2)])
    assert book.index(("saves", "follow", ("compute", 1))) < book.index(("save", 0))
    assert not [entry for entry in book if entry[0] in ("loads", "compute") and entry[1] == "follow"]


def test_a_fault_in_a_copy_costs_its_pages_alone(caplog):
    book = []
    loading = transfers(book, ({1}, {})).load([copy(1, 0), copy(2, 1)])
    assert loading.results() == {1: (False, False), 2: (True, True)}
    assert "a copy of 2 pages failed: the copy broke" in caplog.text
    saving, _ = transfers(book, ({"pairs"}, {})).save([copy(3, 0), copy(4, 1)], None)
    assert saving.results() == {3: (False, False), 4: (True, True)}
    assert saving.results(ended=False) == {3: (False, False), 4: (False, False)}


# --- rows, buckets, tables -------------------------------------------------------------------------------------


def tokens(*numbers):
    return np.array(numbers, np.int32).tobytes()


def test_rows_of_one_token_come_first_and_are_found_again():
    rows = (Row(4, 0, 2, tokens(7, 8), False), Row(1, 9, 1, None, True), Row(2, 5, 3, tokens(1, 2, 3), True))
    lineup = line_up((*rows, Row(3, 5, 1, tokens(6), True)))
    assert [row.slot for row in lineup.rows] == [1, 3, 4, 2]
    assert (lineup.order, lineup.decodes) == ((1, 3, 0, 2), 2)
    assert lineup.tokens.tolist() == [7, 8, 1, 2, 3]
    assert lineup.triples[2] == (4, 0, 2)


def test_graphs_are_of_few_shapes_and_hold_every_step_of_decodes():
    decodes = [shape.decodes for shape in shapes(True, 256) if not shape.prompts]
    assert decodes[:10] == [1, 2, 4, 8, 16, 24, 32, 48, 64, 96]
    assert decodes[-1] == 256
    assert [shape.decodes for shape in shapes(True, 5) if not shape.prompts] == [1, 2, 4, 5]
    assert [shape.decodes for shape in shapes([16, 3, 99], 64) if not shape.prompts] == [3, 16, 64]
    assert shapes(False, 64) == shapes([], 64) == ()
    for rows in range(1, 257):
        found = fit(rows, 0, 0, shapes(True, 256))
        assert (found.prompts, found.tokens) == (0, found.decodes)
        assert rows <= found.decodes <= max(rows * 2, 4)
    assert fit(17, 0, 0, shapes([3, 16], 64)) is None


def test_a_step_with_prompts_takes_the_smallest_graph_that_holds_it():
    made = shapes(True, 128)
    assert fit(0, 1, 24, made) == StepShape(0, 1, 32)
    assert fit(0, 1, 512, made) == StepShape(0, 1, 512)
    assert fit(1, 1, 0, made) == StepShape(8, 4, 32)  # one decode that waits for loads
    assert fit(0, 2, 24, made) == StepShape(8, 4, 32)
    assert fit(8, 4, 25, made) == StepShape(8, 4, 64)
    assert fit(9, 1, 192, made) == StepShape(64, 8, 256)
    assert fit(9, 1, 193, made) == StepShape(64, 8, 384)
    for too_large in ((0, 9, 10), (65, 1, 10), (0, 1, 2049), (1, 1, 2041)):
        assert fit(*too_large, made) is None
    assert {shape.decodes for shape in shapes(True, 6) if shape.prompts} == {0, 6}


@pytest.mark.parametrize("chunk", [1, 30, 500, 512, 1400])
def test_graphs_with_prompts_hold_a_whole_chunk_and_little_more(chunk):
    made = shapes(True, 128, chunk)
    for decodes in (0, 8, 64):
        assert fit(decodes, 1, chunk, made) is not None
        room = sorted(shape.tokens - decodes for shape in made if shape.prompts and shape.decodes == decodes)
        assert all(tokens < chunk for tokens in room[:-1])


def make_state(tokens=64):
    groups = [GroupSpec("full", Full(), 4, (0,)), GroupSpec("swa", Window(5), 4, (1,))]
    return SlotState(groups, 4, 3, tokens, torch.device("cpu"))


def edit(slot, group, first, *pages):
    return TableEdit(slot, group, first, np.array(pages, np.int32))


def test_what_a_plan_says_of_tables_and_tokens_reaches_the_device():
    state = make_state()
    opened = SlotOpen(1, Sampling(), tokens(5, 6), 0)
    state.write(
        state.edit(StepPlan(1, opens=(opened,), tables=(edit(1, 0, 0, 7, 8), edit(1, 1, 1, 3), edit(2, 0, 2, 9))))
    )
    assert state.tables[0][1].tolist()[:3] == [7, 8, -1]
    assert state.tables[1][1].tolist()[:3] == [-1, 3, -1]
    assert state.tables[0][2].tolist()[:3] == [-1, -1, 9]
    assert state.last.tolist() == [0, 6, 0, 0]
    changes = (edit(1, 0, 1, -1, 4), edit(1, 0, 1, 2))  # of one place twice: the last holds
    rows = (Row(1, 4, 1, tokens(77), True), Row(2, 0, 2, tokens(1, 2), True))
    state.write(state.edit(StepPlan(2, tables=changes, rows=rows)))
    assert state.tables[0][1].tolist()[:4] == [7, 2, 4, -1]
    assert state.last.tolist() == [0, 77, 0, 0]
    assert (state.tables[0][state.idle] == -1).all()


@pytest.mark.parametrize("row", [(1, 8, 1), (1, 0, 13), (1, 0, 300), (1, 300, 1)])
def test_a_row_that_lacks_a_page_is_refused(row):
    state = make_state()
    state.edit(StepPlan(1, tables=(edit(1, 0, 0, 0, 1, 2), edit(1, 1, 0, -1, 4))))
    state.check([(1, 7, 1)])
    with pytest.raises(ValueError, match=rf"a row of {row[1]} \+ {row[2]} tokens needs a page that its table lacks"):
        state.check([(1, 7, 1), row])


def test_pages_that_a_window_left_behind_are_not_missed():
    state = make_state()
    state.edit(StepPlan(1, tables=(edit(1, 0, 0, 0, 1, 2, 3, 4), edit(1, 1, 0, -1, -1, 2, 3, 4))))
    state.check([(1, 13, 4)])
    with pytest.raises(ValueError, match="lacks"):
        state.check([(1, 12, 4)])


def test_a_table_longer_than_the_longest_request_is_refused():
    with pytest.raises(ValueError, match="a table of 17 pages does not fit into 16"):
        make_state().edit(StepPlan(1, tables=(edit(0, 0, 16, 1),)))
