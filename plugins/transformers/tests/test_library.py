"""Attention by a plugin: which layers and steps it has, what it is told of them, and what becomes of its faults."""

import numpy as np
import pytest
import torch

from stepwell import (
    AttentionRun,
    Capability,
    ConfigError,
    Full,
    NoConfig,
    Offer,
    PagedAttention,
    Part,
    Row,
    Sampling,
    SlotOpen,
    TableEdit,
    Window,
)
from stepwell_kernels import Batch, RaggedRow, paged_attention
from stepwell_transformers.config import TransformersConfig
from stepwell_transformers.cuda import assemble
from stepwell_transformers.cuda.library import Library
from stepwell_transformers.model import PagedModel
from stepwell_transformers.prove import prove

from .test_cuda_executor import OnCpu, by_reference

GRAPHS = (2, 4)


class Run(AttentionRun):
    """Computes by the reference from what it was told, and from nothing else."""

    def __init__(self, plugin, layers, graph):
        self.plugin, self.layers, self.graph = plugin, layers, graph
        self.rows = None

    def plan(self, rows):
        assert rows.counts.min() >= 1 and (rows.tokens >= rows.counts).all()
        pages = -(-rows.tokens // self.layers.page_size)
        assert len(rows.pages) == pages.sum() and rows.pages.min() >= 0
        if self.graph is not None:
            assert (len(rows.counts), True) == (self.graph[0], len(rows.pages) <= self.graph[1])
        self.rows = rows
        if self.plugin.fault:
            raise self.plugin.fault

    def run(self, query, keys, values, out, sinks=None):
        layers, rows = self.layers, self.rows
        assert (sinks is not None) == layers.sinks and query.shape == (rows.counts.sum(), layers.heads, layers.key_dim)
        ends = np.cumsum(-(-rows.tokens // layers.page_size))[:-1]
        each = zip(rows.tokens.tolist(), rows.counts.tolist(), np.split(rows.pages, ends), strict=True)
        ragged = [RaggedRow(tokens - count, count, pages) for tokens, count, pages in each]
        window = layers.need.tokens if isinstance(layers.need, Window) else None
        batch = Batch(ragged, layers.page_size, "cpu", window=window)
        out[:] = paged_attention(query, keys, values, batch, layers.scale, sinks, layers.softcap) * self.plugin.times
        self.plugin.ran.append((layers.need, "graph" if self.graph else int(rows.counts.max())))


class Plugin(PagedAttention):
    """Does what `needs` allow."""

    def __init__(self, needs=(Full, Window), fault=None, times=1):
        self.needs, self.fault, self.times = needs, fault, times
        self.ran, self.closed = [], False

    def lacks(self, layers):
        return None if isinstance(layers.need, self.needs) else "such things"

    def decodes(self, layers, graph=None):
        return Run(self, layers, graph)

    def prompts(self, layers):
        return Run(self, layers, None)

    def close(self):
        self.closed = True


def part(plugin, *, graphs=True):
    provides = frozenset({Capability.GRAPH_SAFE} if graphs else ())
    return Part(Offer("other", lambda config, context: plugin, NoConfig, provides=provides), NoConfig())


@pytest.fixture
def serve(tiny, place, driver_of, make_prompts):
    """Prompts of all lengths through a runner with a plugin, beside each other, decodes in graphs."""
    runners = []

    def serve(kind, plugin, page_size=16, graphs=GRAPHS, safe=True):
        config = TransformersConfig(model=str(tiny(kind)), dtype="float32", device="cpu", graphs=graphs)
        runners.append(OnCpu(config, place))
        runners[-1]._model.library = Library(part(plugin, graphs=safe), place)
        prompts = make_prompts(1, 15, 17, 70, 5)
        driver = driver_of(runners[-1], page_size)
        return prompts, driver.serve(prompts, new=12, chunk=65, budget=80, stagger=1), driver

    yield serve
    for runner in runners:
        runner.close()


KINDS = [("llama", 16), ("gpt-oss", 4), ("gemma2", 1), ("mistral-sliding", 16)]


@pytest.mark.parametrize("graphs", [False, GRAPHS])
@pytest.mark.parametrize(("kind", "page_size"), KINDS)
def test_answers_are_those_of_generate(tiny, truth, serve, kind, page_size, graphs):
    """A graph with prompts does without it."""
    plugin = Plugin()
    prompts, answers, _ = serve(kind, plugin, page_size, graphs)
    for prompt, answer in zip(prompts, answers, strict=True):
        truth(tiny(kind), prompt, 12).check(answer)
    ways = {how for _, how in plugin.ran}
    assert ("graph" in ways) if graphs else (ways >= {1, 65})


def test_layers_that_it_does_not_do_are_said_once_and_keep_what_they_have(tiny, truth, serve, caplog):
    plugin = Plugin(needs=(Full,))
    prompts, answers, _ = serve("gpt-oss", plugin)
    for prompt, answer in zip(prompts, answers, strict=True):
        truth(tiny("gpt-oss"), prompt, 12).check(answer)
    assert {type(need) for need, _ in plugin.ran} == {Full}
    (said,) = [record.message for record in caplog.records if "such things" in record.message]
    assert said.startswith("other does not do such things: layers with Window(") and said.endswith("Triton's kernels")


def test_one_that_is_not_safe_in_graphs_is_in_none(tiny, truth, serve):
    plugin = Plugin()
    prompts, answers, _ = serve("llama", plugin, safe=False)
    for prompt, answer in zip(prompts, answers, strict=True):
        truth(tiny("llama"), prompt, 12).check(answer)
    assert "graph" not in {how for _, how in plugin.ran} and plugin.ran


def test_a_fault_while_serving_costs_the_step_alone(tiny, truth, serve):
    plugin = Plugin()
    prompts, _, driver = serve("llama", plugin, graphs=False)
    plugin.fault = RuntimeError("no room in the workspace")
    tokens, opens = np.array(prompts[1], np.int32).tobytes(), (SlotOpen(0, Sampling(), b"", 0),)
    tables = (TableEdit(0, 0, 0, driver.pages(16)),)
    result = driver.step(rows=(Row(0, 0, len(prompts[1]), tokens, True),), opens=opens, tables=tables, error=True)
    assert "runner.attention: 'other' does not work here (RuntimeError: no room in the workspace)" in result.error
    plugin.fault = None
    (again,) = driver.serve(prompts[1:2], new=4)
    truth(tiny("llama"), prompts[1], 4).check(again)


@pytest.fixture
def proven(tiny, place, monkeypatch):
    """A model that is proven with a plugin's attention, where the kernels for CUDA would be."""
    monkeypatch.setattr(assemble, "paging_on_cuda", lambda model, pools, state, rows: by_reference(model, pools, state))

    def proven(plugin, kind="gpt-oss"):
        model = PagedModel(tiny(kind), kind, torch.float32, torch.device("cpu"))
        model.library = Library(part(plugin), place)
        prove(model, kind, kernels=True)

    return proven


def test_a_model_is_proven_through_it(proven):
    plugin = Plugin()
    proven(plugin)
    assert {(type(need), how > 1) for need, how in plugin.ran} == {
        (kind, many) for kind in (Full, Window) for many in (True, False)
    }


def test_one_that_does_not_work_ends_the_start_with_one_sentence(proven):
    with pytest.raises(ConfigError) as told:
        proven(Plugin(fault=ValueError("unknown layout\nof pages")))
    assert str(told.value) == (
        "runner.attention: 'other' does not work here (ValueError: unknown layout); use 'triton'"
    )


def test_one_that_computes_something_else_ends_the_start_with_one_sentence(proven):
    with pytest.raises(ConfigError, match="what 'other' answers is not what gpt-oss answers by itself"):
        proven(Plugin(times=1.5))


def test_one_that_cannot_be_made_ends_the_start_with_one_sentence(place):
    def make(config, context):
        raise ImportError("libsomething.so.3: cannot open shared object file")

    offer = Offer("other", make)
    with pytest.raises(ConfigError, match=r"'other' does not work here .ImportError: libsomething"):
        Library(Part(offer, NoConfig()), place)
