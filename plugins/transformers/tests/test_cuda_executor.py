"""The executor for CUDA on the CPU: lanes that end at once, graphs that are played anew, attention by the reference."""

import logging
import threading
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from stepwell import ConfigError, Row, Sampling, SlotOpen, TableEdit
from stepwell_kernels import HostPages, PagePool, PageShape, RaggedRow
from stepwell_kernels.paged import StepBuffers
from stepwell_kernels.transfer.mover import TorchMover
from stepwell_transformers.config import TransformersConfig
from stepwell_transformers.cuda.assemble import movers_for
from stepwell_transformers.cuda.buckets import shapes
from stepwell_transformers.cuda.compute import Compute, Computed
from stepwell_transformers.cuda.exact import exact_products
from stepwell_transformers.cuda.executor import CudaExecutor
from stepwell_transformers.cuda.graphs import StepGraphs
from stepwell_transformers.cuda.lanes import Lane, Lanes
from stepwell_transformers.cuda.library import turns
from stepwell_transformers.cuda.state import SlotState
from stepwell_transformers.drawing import Drawer
from stepwell_transformers.model import PagedModel
from stepwell_transformers.paging import GroupStep, PlainPaging, lay_out
from stepwell_transformers.runner import TransformersRunner, picks_kernels

LOG = logging.getLogger("stepwell.transformers")


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


def by_reference(model, pools, state):
    """Attention of steps whose numbers and tables are on the device, by the reference; padding gets the last page."""

    def ragged(slot, start, count, table, pool):
        size = pool.shape.page_size
        if slot == state.idle:
            return RaggedRow(0, count, np.full(-(-count // size), pool.pages - 1, np.int32))
        return RaggedRow(start, count, table[slot].numpy())

    def make(step, ready):
        counts = [1] * step.shape.decodes + step.counts.tolist()[step.shape.decodes :]
        rows = list(zip(step.slots.tolist(), step.starts.tolist(), counts, strict=True))
        rows.append((state.idle, 0, step.shape.tokens - sum(counts)))
        groups = []
        for group, pool, table in zip(model.groups, pools, state.tables, strict=True):
            own = [ragged(*row, table, pool) for row in rows if row[2]]
            groups.append(GroupStep(pool, lay_out(own, group.need, pool.shape.page_size, "cpu"), group.need))
        return PlainPaging(groups, model.seats, step.positions, ready)

    return make


class Played(StepGraphs):
    """Graphs that are played step by step, each time anew, into what was there first."""

    def __init__(self, *args):
        super().__init__(*args)
        self.played = []
        for shape in self._shapes:
            self._graphs[shape] = self._captured(shape, None, None)

    def _captured(self, shape, pool, lane):
        step = self._buffers.step(shape)
        rows, vocab = shape.rows, self._compute.model.vocab
        kept = Computed(torch.empty(rows, vocab), step, torch.empty(rows, dtype=torch.int64))

        class Graph:
            def replay(_):
                self.played.append(shape)
                computed = self._step(step)
                kept.logits.copy_(computed.logits)
                kept.tokens.copy_(computed.tokens)

        return Graph(), kept


class OnCpu(TransformersRunner):
    """The runner with the executor for CUDA."""

    late_saves = True

    def open(self, page_size, pages, slots, wake):
        pools = self._pools(page_size, [pages[group.name] + 1 for group in self.groups])
        self._shapes, self.pools = [pool.shape for pool in pools], pools
        state = SlotState(self.groups, page_size, slots, self.model.context, self._model.device)
        own = turns(self._model, pools, state)
        compute = Compute(self._model, state, by_reference(self._model, pools, state), slots, own)
        wanted = shapes(self._config.graphs, slots)
        graphs = Played(compute, wanted, lambda layer: None) if wanted else None

        def movers(hosts):
            return [TorchMover(pool, host) for pool, host in zip(pools, hosts, strict=True)]

        drawer = Drawer(self._model.device, slots, self.model.vocab)
        self._executor = CudaExecutor(compute, graphs, drawer, Lanes(Now(), Now(), Now()), movers, wake, LOG)


@pytest.fixture
def on_cpu(place, driver_of):
    made = []

    def make(folder, page_size=16, host=0, graphs=False):
        config = TransformersConfig(model=str(folder), dtype="float32", device="cpu", graphs=graphs)
        made.append(OnCpu(config, place))
        return driver_of(made[-1], page_size, host)

    yield make
    for runner in made:
        runner.close()


@pytest.mark.parametrize(("kind", "page_size"), [("llama", 16), ("gpt-oss", 4)])
def test_graphs_with_padding_say_what_generate_says(tiny, truth, on_cpu, make_prompts, kind, page_size):
    """Decodes alone and beside prompts, of which one is too long; penalised rows among them draw by their own slots."""
    prompts, hot = make_prompts(1, 15, 17, 70, 5), Sampling(temperature=0.0, presence_penalty=1.5)
    kinds = [Sampling()] * 4 + [hot]
    plain = on_cpu(tiny(kind), page_size)
    (penalised,) = plain.serve(prompts[4:], new=16, sampling=hot)
    driver = on_cpu(tiny(kind), page_size, graphs=(2, 4))
    answers = driver.serve(prompts, new=16, chunk=65, budget=80, stagger=1, sampling=kinds)
    for prompt, answer in zip(prompts[:4], answers, strict=False):
        truth(tiny(kind), prompt, 16).check(answer)
    assert answers[4] == penalised
    played = driver.runner._opened._graphs.played
    assert {shape.prompts for shape in played} == {0, 4}
    assert {shape.decodes for shape in played} == {2, 4, 8}


def test_one_token_behind_loaded_pages_takes_a_graph_that_waits(tiny, truth, on_cpu, make_prompts, page_copy):
    folder, (prompt,) = tiny("llama"), make_prompts(33)
    driver = on_cpu(folder, 16, host=4, graphs=(2,))
    tokens, pages, mine = np.array(prompt, np.int32).tobytes(), driver.pages(48), driver.pages(48)
    slot = SlotOpen(0, Sampling(), tokens, 0)
    driver.step(rows=(Row(0, 0, 33, tokens, False),), opens=(slot,), tables=(TableEdit(0, 0, 0, pages),))
    driver.step(saves=(page_copy(1, pages[:2].tolist(), [3, 0]),))
    ended(driver, 1)
    result = driver.step(
        closes=(0,),
        opens=(slot,),
        tables=(TableEdit(0, 0, 0, mine),),
        loads=(page_copy(2, mine[:2].tolist(), [3, 0]),),
        rows=(Row(0, 32, 1, tokens[-4:], True),),
    )
    truth(folder, prompt, 1).check(result.tokens[0])
    assert [shape.prompts for shape in driver.runner._opened._graphs.played] == [1, 4]


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


def test_kernels_are_compiled_over_nobodys_tokens(tiny, on_cpu):
    """What warms them leaves every page but that of padding alone."""
    driver = on_cpu(tiny("llama"), 16)
    driver.runner._opened._compute.warm(40)
    assert not any(side[:, :-1].any() for side in driver.runner.pools[0].sides)


def test_a_step_too_large_for_the_memory_says_what_to_lower(tiny, on_cpu, monkeypatch):
    driver = on_cpu(tiny("llama"), 16)

    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 5.00 GiB.\nmore")

    monkeypatch.setattr(driver.runner._opened._compute, "prepare", full)
    tables, rows = (TableEdit(0, 0, 0, driver.pages(16)),), (Row(0, 0, 3, b"\4\0\0\0" * 3, True),)
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


def test_a_result_that_cannot_be_read_is_said_and_hangs_nobody(tiny, on_cpu, monkeypatch):
    driver = on_cpu(tiny("llama"), 16)

    def unreadable(drawn):
        raise KeyError("lost")

    monkeypatch.setattr("stepwell_transformers.drawing.Drawn.read", unreadable)
    for slot in range(2):
        tables, rows = (TableEdit(slot, 0, 0, driver.pages(16)),), (Row(slot, 0, 3, b"\4\0\0\0" * 3, True),)
        step = driver.launch(opens=(SlotOpen(slot, Sampling(), b"", 0),), tables=tables, rows=rows)
        with pytest.raises(KeyError, match="lost"):
            driver.wait(step)


def test_a_closed_runner_ends_its_threads(tiny, on_cpu):
    before = set(threading.enumerate())
    driver = on_cpu(tiny("llama"), 16)
    assert len(set(threading.enumerate()) - before) == 3
    driver.runner.close()
    assert set(threading.enumerate()) <= before
