"""The executor for CUDA on the CPU: lanes that end at once or are only written down, attention by the reference."""

import logging
import threading
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from stepwell import ConfigError, GroupSpec, PageCopy, Row, Sampling, SlotOpen, StepPlan, TableEdit
from stepwell.types import Full, Window
from stepwell_kernels import HostPages, PagePool, PageShape, RaggedRow
from stepwell_kernels.paged import StepBuffers, StepShape
from stepwell_kernels.transfer.mover import TorchMover
from stepwell_transformers.config import TransformersConfig
from stepwell_transformers.cuda.assemble import movers_for
from stepwell_transformers.cuda.buckets import fit, shapes
from stepwell_transformers.cuda.compute import Compute
from stepwell_transformers.cuda.exact import exact_products
from stepwell_transformers.cuda.executor import CudaExecutor
from stepwell_transformers.cuda.lanes import Lane, Lanes
from stepwell_transformers.cuda.lineup import line_up
from stepwell_transformers.cuda.state import SlotState
from stepwell_transformers.cuda.transfers import Transfers
from stepwell_transformers.drawing import Drawer
from stepwell_transformers.model import PagedModel
from stepwell_transformers.paging import GroupStep, PlainPaging, Seat, lay_out
from stepwell_transformers.runner import TransformersRunner, picks_kernels

LOG = logging.getLogger("stepwell.transformers")


# --- lanes without a device ------------------------------------------------------------------------------------


class Now(Lane):
    """Whatever is enqueued has ended when the call returns."""

    def enqueue(self):
        return nullcontext()

    def mark(self, anew=None):
        return self

    def follow(self, mark):
        assert isinstance(mark, Now)

    def synchronize(self):
        pass


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
    assert book == [("compute", "follow", ("loads", 2))]


def test_what_graphs_wait_for_is_set_behind_each_load_into_its_layer():
    book, gates = [], {layer: f"gate {layer}" for layer in SEATS}
    moves = transfers(book, gates=gates)
    for _ in range(2):
        book.clear()
        moves.load([copy(1, 1)])
        assert [entry[2] for entry in book if entry[1] == "mark"] == ["gate 1", "gate 3"]
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
    assert shapes(False, 64) == ()
    for rows in range(1, 257):
        found = fit(rows, 0, 0, shapes(True, 256))
        assert (found.prompts, found.tokens) == (0, found.decodes)
        assert rows <= found.decodes <= max(rows * 2, 4)
    assert fit(17, 0, 0, shapes([3, 16], 64)) is None


def test_a_step_with_prompts_takes_the_smallest_graph_that_holds_it():
    made = shapes(True, 128)
    assert fit(0, 1, 64, made) == StepShape(8, 4, 8 + 64)
    assert fit(8, 4, 65, made) == StepShape(8, 4, 8 + 128)
    assert fit(9, 1, 200, made) == StepShape(64, 4, 64 + 256)
    for too_large in ((0, 5, 10), (65, 1, 10), (0, 1, 513)):
        assert fit(*too_large, made) is None
    assert {shape.decodes for shape in shapes(True, 6) if shape.prompts} == {6}


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


# --- all of it together ----------------------------------------------------------------------------------------


def by_reference(model, pools, state):
    """Attention of steps whose numbers and tables are on the device, by the reference."""

    def make(step, ready):
        slots, starts = step.slots.tolist(), step.starts.tolist()
        counts = [1] * step.shape.decodes + step.counts.tolist()[step.shape.decodes :]
        groups = []
        for group, pool, table in zip(model.groups, pools, state.tables, strict=True):
            rows = [RaggedRow(*row, table[slot].numpy()) for slot, *row in zip(slots, starts, counts, strict=True)]
            groups.append(GroupStep(pool, lay_out(rows, group.need, pool.shape.page_size, "cpu"), group.need))
        return PlainPaging(groups, model.seats, step.positions, ready)

    return make


class OnCpu(TransformersRunner):
    """The runner with the executor for CUDA."""

    late_saves = True

    def open(self, page_size, pages, slots, wake):
        pools = self._pools(page_size, [pages[group.name] for group in self.groups])
        self._shapes = [pool.shape for pool in pools]
        state = SlotState(self.groups, page_size, slots, self.model.context, self._model.device)
        compute = Compute(self._model, state, by_reference(self._model, pools, state), slots)

        def movers(hosts):
            return [TorchMover(pool, host) for pool, host in zip(pools, hosts, strict=True)]

        self._executor = CudaExecutor(
            compute,
            None,
            Drawer(self._model.device, slots, self.model.vocab),
            Lanes(Now(), Now(), Now()),
            movers,
            wake,
            LOG,
        )


@pytest.fixture
def on_cpu(place, driver_of):
    made = []

    def make(folder, page_size=16, host=0):
        config = TransformersConfig(model=str(folder), dtype="float32", device="cpu")
        made.append(OnCpu(config, place))
        return driver_of(made[-1], page_size, host)

    yield make
    for runner in made:
        runner.close()


@pytest.mark.parametrize(
    ("kind", "page_size", "chunk"), [("llama", 16, 24), ("llama", 1, 7), ("gpt-oss", 4, 5), ("llama4", 16, 33)]
)
def test_greedy_tokens_are_those_of_generate(tiny, truth, on_cpu, make_prompts, kind, page_size, chunk):
    prompts = make_prompts(1, 15, 17, 70)
    answers = on_cpu(tiny(kind), page_size).serve(prompts, new=16, chunk=chunk, budget=60, stagger=1)
    for prompt, answer in zip(prompts, answers, strict=True):
        truth(tiny(kind), prompt, 16).check(answer)


def test_draws_and_log_probabilities_are_those_of_one_step_after_another(tiny, on_cpu, drive, make_prompts):
    """Beside greedy rows and rows that do not sample; a retracted request draws on."""
    hot = Sampling(temperature=1.0, seed=3, top_p=0.9, top_k=50, repetition_penalty=1.2, frequency_penalty=0.3)
    kinds = [hot, Sampling(), Sampling(temperature=1.5, seed=8)]
    prompts = make_prompts(20, 9, 40)
    mine = on_cpu(tiny("llama")).serve(prompts, new=12, chunk=16, budget=30, sampling=kinds, stagger=1)
    assert mine == drive(tiny("llama")).serve(prompts, new=12, chunk=16, budget=30, sampling=kinds, stagger=1)
    driver = on_cpu(tiny("llama"))
    again = np.array(prompts[0] + mine[0][:5], np.int32).tobytes()
    rows = (Row(1, 0, 2, again[:8], False), Row(3, 0, 25, again, True), Row(2, 0, 1, again[:4], True))
    wanted = Sampling(logprobs=2)
    result = driver.step(
        opens=(SlotOpen(1, hot, again[:8], 0), SlotOpen(3, hot, again, 5), SlotOpen(2, wanted, again[:4], 0)),
        tables=tuple(TableEdit(slot, 0, 0, driver.pages(60)) for slot in (1, 2, 3)),
        rows=rows,
    )
    assert result.tokens[:2] == ((), (mine[0][5],))
    assert [len(odds) for odds in result.logprobs] == [0, 0, 1]
    assert result.logprobs[2][0].top[0] == (result.tokens[2][0], result.logprobs[2][0].logprob)
    assert driver.step(rows=(Row(3, 25, 1, None, True),)).tokens == ((mine[0][6],),)


def ended(driver, *saves):
    """What became of saves, once all have ended."""
    found = {}
    while not found.keys() >= set(saves):
        found |= driver.runner.saved()
    return found


def test_pages_go_to_host_and_back_and_saves_are_told_of_late(tiny, truth, on_cpu, make_prompts, page_copy):
    folder, (prompt,) = tiny("llama"), make_prompts(50)
    tokens = np.array(prompt, np.int32).tobytes()
    first = on_cpu(folder, 16, host=8)
    pages, slot = first.pages(50), SlotOpen(0, Sampling(), tokens, 0)
    first.step(rows=(Row(0, 0, 50, tokens, False),), opens=(slot,), tables=(TableEdit(0, 0, 0, pages),))
    result = first.step(saves=(page_copy(1, pages[:3].tolist(), [6, 1, 4]), page_copy(2, pages[:1].tolist(), [99])))
    assert result.copies == {}
    assert ended(first, 1, 2) == {1: (True,) * 3, 2: (False,)}
    assert first.runner.saved() == {}
    second = on_cpu(folder, 16, host=8)
    second.arena.memory[:] = first.arena.memory
    mine = second.pages(80)
    result = second.step(
        opens=(slot,),
        tables=(TableEdit(0, 0, 0, mine),),
        loads=(page_copy(9, mine[:3].tolist(), [6, 1, 4]), page_copy(8, mine[:1].tolist(), [50])),
        rows=(Row(0, 48, 2, tokens[48 * 4 :], True),),
    )
    assert result.copies == {9: (True,) * 3, 8: (False,)}
    answer = list(result.tokens[0])
    for at in range(50, 60):
        answer += second.step(rows=(Row(0, at, 1, None, True),)).tokens[0]
    truth(folder, prompt, 11).check(answer)


def test_loads_alone_are_a_step(tiny, on_cpu, page_copy):
    driver = on_cpu(tiny("llama"), 16, host=2)
    assert driver.step(loads=(page_copy(1, [0, 3], [1, 0]),)).copies == {1: (True, True)}
    assert on_cpu(tiny("llama"), 16).step(loads=(page_copy(1, [0], [0]),)).copies == {1: (False,)}


def test_a_step_that_raises_is_an_error_and_the_next_one_works(tiny, truth, on_cpu, make_prompts, page_copy):
    driver = on_cpu(tiny("llama"), 16, host=2)
    (prompt,) = make_prompts(20)
    tokens, opens = np.array(prompt, np.int32).tobytes(), (SlotOpen(0, Sampling(), b"", 0),)
    tables, loads = (TableEdit(0, 0, 0, driver.pages(16)),), (page_copy(1, driver.pages(1).tolist(), [0]),)
    result = driver.step(rows=(Row(0, 0, 20, tokens, True),), opens=opens, tables=tables, loads=loads, error=True)
    assert "needs a page that its table lacks" in result.error
    assert (result.tokens, result.copies) == ((), {1: (True,)})
    truth(tiny("llama"), prompt, 8).check(driver.serve([prompt], new=8)[0])


def test_a_device_that_takes_no_more_work_is_said_by_each_step_and_hangs_nobody(tiny, on_cpu, monkeypatch):
    driver = on_cpu(tiny("llama"), 16)
    lane = driver.runner._opened._lanes.compute

    def broken(anew=None):
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(lane, "mark", broken)
    for _ in range(2):
        step = driver.launch(closes=(0,))
        with pytest.raises(RuntimeError, match="illegal memory access"):
            driver.wait(step)


class Unasked(TorchDispatchMode):
    """Raises where the host asks for a number that a device has computed: a graph cannot be captured there."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        assert function.__name__.partition(".")[0] not in ("_local_scalar_dense", "nonzero", "masked_select", "equal")
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", ["llama", "gpt-oss", "gemma2", "llama4", "mimo", "qwen3-moe"])
@pytest.mark.parametrize("fuse", ["off", "kernels"])
def test_a_forward_asks_the_device_nothing(tiny, kind, fuse):
    model = PagedModel(tiny(kind), kind, torch.float32, torch.device("cpu"), fuse)
    state = SlotState(model.groups, 4, 2, 64, model.device)
    pools = [PagePool(shape, 4, model.device) for shape in model.shapes(4)]
    for table in state.tables:
        table.zero_()
    buffers = StepBuffers(model.device, 2, 8, state.idle)
    step = buffers.step(buffers.fill([(0, 3, 1), (1, 0, 4)], 2, 5))
    paging = by_reference(model, pools, state)(step, lambda _: None)
    compute = Compute(model, state, lambda *_: paging, 2)
    with torch.inference_mode(), Unasked():
        assert compute.forward(torch.arange(5), step, lambda _: None).shape == (2, 300)
    with pytest.raises(AssertionError), Unasked():
        torch.ones(1).item()


def test_a_step_too_large_for_the_memory_says_what_to_lower(tiny, on_cpu, monkeypatch):
    driver = on_cpu(tiny("llama"), 16)

    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 5.00 GiB.\nmore")

    monkeypatch.setattr(driver.runner._opened._compute, "run", full)
    tables, rows = (TableEdit(0, 0, 0, driver.pages(16)),), (Row(0, 0, 3, tokens(4, 5, 6), True),)
    result = driver.step(opens=(SlotOpen(0, Sampling(), b"", 0),), tables=tables, rows=rows, error=True)
    assert "3 tokens at once need more memory than is left: lower engine.chunk or runner.memory" in result.error
    assert "Tried to allocate 5.00 GiB" in result.error


def test_kernels_are_for_cuda_and_for_triton(monkeypatch, caplog):
    cuda, cpu = torch.device("cuda"), torch.device("cpu")
    assert picks_kernels("auto", cuda, LOG)
    assert not picks_kernels("torch", cuda, LOG)
    assert not picks_kernels("auto", cpu, LOG)
    with pytest.raises(ConfigError, match="'triton' needs a CUDA device"):
        picks_kernels("triton", cpu, LOG)
    monkeypatch.setattr("stepwell_transformers.runner.find_spec", lambda name: None)
    assert not picks_kernels("auto", cuda, LOG)
    assert "triton is not installed" in caplog.text
    with pytest.raises(ConfigError, match="'triton' needs triton, which is not installed"):
        picks_kernels("triton", cuda, LOG)


def test_a_way_to_copy_that_does_not_work_here_is_a_config_error(tmp_path):
    shape = PageShape(2, 16, 2, 16, torch.float32)
    pool, memory = PagePool(shape, 4, "cpu"), memoryview(bytearray(4 * shape.page_bytes))
    host = HostPages(memory, 0, shape.page_bytes, 4, shape)
    with pytest.raises(ConfigError, match=r"runner\.copies: 'engine' does not work here"):
        movers_for([pool], TransformersConfig(copies="engine"), tmp_path, [host])
    (mover,) = movers_for([pool], TransformersConfig(), tmp_path, [host])
    assert mover.method == "torch"


def test_products_are_exact_while_a_runner_is_open():
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    try:
        for own in ("tf32", "ieee"):
            matmul.fp32_precision = own
            with exact_products():
                assert matmul.fp32_precision == "ieee"
            assert matmul.fp32_precision == own
    finally:
        matmul.fp32_precision = before


def test_a_closed_runner_ends_its_threads(tiny, on_cpu):
    before = set(threading.enumerate())
    driver = on_cpu(tiny("llama"), 16)
    assert len(set(threading.enumerate()) - before) == 3
    driver.runner.close()
    assert set(threading.enumerate()) <= before
