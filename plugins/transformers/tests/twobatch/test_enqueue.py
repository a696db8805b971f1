"""Halves by the executor for CUDA, on the CPU: lanes that end at once, graphs that are played anew."""

from __future__ import annotations

import logging
from contextlib import contextmanager, nullcontext

import numpy as np
import pytest
import torch

from stepwell import Dispatcher, Format, Row
from stepwell_kernels import RaggedRow
from stepwell_kernels.paged import StepShape
from stepwell_transformers.config import TransformersConfig
from stepwell_transformers.cuda.compute import Compute
from stepwell_transformers.cuda.executor import CudaExecutor
from stepwell_transformers.cuda.lanes import Lane, Lanes
from stepwell_transformers.cuda.state import SlotState
from stepwell_transformers.drawing import Drawer
from stepwell_transformers.paging import GroupStep, PlainPaging, lay_out
from stepwell_transformers.runner import TransformersRunner
from stepwell_transformers.twobatch.aside import Side
from stepwell_transformers.twobatch.assemble import halves_of
from stepwell_transformers.twobatch.enqueue import InHalves
from stepwell_transformers.twobatch.graphs import HalvedGraphs
from stepwell_transformers.twobatch.overlap import overlap_of
from stepwell_transformers.twobatch.pace import HostWatch
from stepwell_transformers.twobatch.split import split

LOG = logging.getLogger("stepwell.transformers")


class Noted(Lane):
    """Writes down what happens; whatever is enqueued has ended when the call returns."""

    def __init__(self, name, log):
        self.name, self.log = name, log

    @contextmanager
    def enqueue(self):
        self.log.append(f"into {self.name}")
        yield
        self.log.append(f"out of {self.name}")

    def mark(self, anew=None):
        return self.name

    def follow(self, mark):
        self.log.append(f"{self.name} waits for {mark}")


class Now(Noted):
    def __init__(self):
        super().__init__("", [])

    def enqueue(self):
        return nullcontext()

    def mark(self, anew=None):
        return self

    def synchronize(self):
        pass


def by_reference(model, pools, state):
    """Attention of steps whose numbers and tables are on the device, by the reference; padding gets the last page."""

    def ragged(slot, start, count, table, pool):
        if slot == state.idle:
            return RaggedRow(0, count, np.full(-(-count // pool.shape.page_size), pool.pages - 1, np.int32))
        return RaggedRow(start, count, table[slot].numpy())

    def make(step, ready):
        counts = [1] * step.shape.decodes + step.counts.tolist()[step.shape.decodes :]
        rows = list(zip(step.slots.tolist(), step.starts.tolist(), counts, strict=True))
        groups = []
        for group, pool, table in zip(model.groups, pools, state.tables, strict=True):
            own = [ragged(*row, table, pool) for row in rows if row[2]]
            groups.append(GroupStep(pool, lay_out(own, group.need, pool.shape.page_size, "cpu"), group.need))
        return PlainPaging(groups, model.seats, step.positions, ready)

    return make


class Played(HalvedGraphs):
    """Graphs that are played step by step, each time anew, into what was there first."""

    def __init__(self, *args):
        super().__init__(*args)
        self.played = []
        for size in self._sizes:
            self._graphs[size] = self._captured(size, None, None)

    def _captured(self, size, pool, lane):
        steps = self._fill(size, [], [])
        kept = self._step(size, steps)

        class Graph:
            def replay(_):
                self.played.append(size)
                found = self._step(size, steps)
                for name in ("logits", "slots", "tokens"):
                    getattr(kept, name).copy_(getattr(found, name))

        return Graph(), kept


class OnCpu(TransformersRunner):
    """The runner with the executor for CUDA."""

    late_saves = True

    def open(self, page_size, pages, slots, wake):
        pools = self._pools(page_size, [pages[group.name] + 1 for group in self.groups])
        self._shapes = [pool.shape for pool in pools]
        state = SlotState(self.groups, page_size, slots, self.model.context, self._model.device)
        compute = Compute(self._model, state, by_reference(self._model, pools, state), slots)
        self.log = []
        lane = Noted("compute", self.log)
        sides = [Side(lane, Noted(f"side {number}", self.log)) for number in (1, 2)]
        overs = sides[0].over, sides[1].over
        overlap = overlap_of(self._config.overlap, self._model, HostWatch(), LOG, None, overs)
        with torch.inference_mode():
            sizes = self._config.graphs or ()
            self.graphs = Played(compute, sizes, overlap) if sizes else None
        drawer = Drawer(self._model.device, slots, self.model.vocab)
        self._executor = CudaExecutor(
            compute, None, drawer, Lanes(Now(), Now(), Now()), None, wake, LOG, InHalves(overlap, compute, self.graphs)
        )


@pytest.fixture
def on_cpu(place, driver_of, experts_model, new_wires):
    made = []

    def make(family, overlap=2, graphs=()):
        model, part = str(experts_model(family)), new_wires().part
        settings = dict(dtype="float32", device="cpu", dispatch=part, overlap=overlap, graphs=graphs)
        made.append(OnCpu(TransformersConfig(model=model, **settings), place))
        return driver_of(made[-1], 4)

    yield make
    for runner in made:
        runner.close()


@pytest.mark.parametrize("family", ["qwen3-moe", "deepseek-v3"])
@pytest.mark.parametrize("graphs", [(), (1, 2, 4)])
def test_answers_are_those_of_generate(on_cpu, truth, experts_model, make_prompts, family, graphs):
    """Chunks that are cut, decodes beside prompts, decodes alone: those from graphs where there are any."""
    prompts = make_prompts(1, 30, 47, 5, 18)
    driver = on_cpu(family, graphs=graphs)
    answers = driver.serve(prompts, new=10, chunk=32, budget=48, stagger=1)
    for prompt, answer in zip(prompts, answers, strict=True):
        truth(experts_model(family), prompt, 10).check(answer)
    if graphs:
        assert set(driver.runner.graphs.played) >= {4}
    else:
        assert any("side 2 waits" in line for line in driver.runner.log)


def test_what_is_measured_runs_either_way(on_cpu, truth, experts_model, make_prompts):
    prompts = make_prompts(40, 33)
    driver = on_cpu("qwen3-moe", overlap="auto")
    for prompt, answer in zip(prompts, driver.serve(prompts, new=4, chunk=16), strict=True):
        truth(experts_model("qwen3-moe"), prompt, 4).check(answer)


def test_a_graph_holds_halves_of_as_many_rows_and_of_fewer(on_cpu):
    driver = on_cpu("qwen3-moe", graphs=(2, 4))
    graphs = driver.runner.graphs

    def decodes(count):
        return split(tuple(Row(slot, 3, 1, None, True) for slot in range(count)))

    assert [graphs.fits(decodes(count)) for count in (2, 4, 5, 8, 9)] == [True, True, True, True, False]


def test_graphs_of_halves_are_those_of_whole_steps():
    shapes = [StepShape(size, 0, size) for size in (1, 2, 4, 7, 64)] + [StepShape(8, 4, 64)]
    assert halves_of(shapes, 2) == [1, 2, 4, 32]
    assert halves_of(shapes, 64) == [32]
    assert halves_of(shapes, 65) == []


class Inner(Dispatcher[torch.Tensor]):
    """Says where it is called."""

    format, in_flight, capacity = Format.MASKED, 2, 64

    def __init__(self, log):
        self.log = log

    def open(self, traffic):
        raise AssertionError

    def dispatch_start(self, tokens, experts, weights):
        self.log.append("dispatch_start")
        return "sent"

    def dispatch_finish(self, handle):
        self.log.append(f"dispatch_finish {handle}")
        return "got"

    def combine_start(self, outputs, dispatched):
        self.log.append(f"combine_start {dispatched}")
        return "back"

    def combine_finish(self, handle):
        self.log.append(f"combine_finish {handle}")
        return "sums"


def test_exchanges_fork_from_what_is_computed_and_what_needs_them_waits():
    log = []
    side = Side(Noted("compute", log), Noted("side", log))
    aside = side.over(Inner(log))
    assert (aside.format, aside.in_flight, aside.capacity) == (Format.MASKED, 2, 64)
    got = aside.dispatch_finish(aside.dispatch_start("tokens", "experts", "weights"))
    assert side.kept == ["tokens", "experts", "weights", "got"]
    assert aside.combine_finish(aside.combine_start("outputs", got)) == "sums"
    assert log == [
        *("side waits for compute", "into side", "dispatch_start", "out of side"),
        *("into side", "dispatch_finish sent", "out of side", "compute waits for side"),
        *("side waits for compute", "into side", "combine_start got", "out of side"),
        *("into side", "combine_finish back", "out of side", "compute waits for side"),
    ]
    assert side.kept[-2:] == ["outputs", "sums"]
    aside.dispatch_start("more", "experts", "weights")
    assert side.kept == ["more", "experts", "weights"]
