"""What runs of the library are told and answer, against the reference, on random ragged batches."""

import numpy as np
import pytest
import torch

from stepwell import AttentionLayers, AttentionRows, Chunked, Full, Window
from stepwell_flashinfer.attention import FlashInfer
from stepwell_flashinfer.config import FlashInferConfig
from stepwell_kernels import Batch, RaggedRow, paged_attention

DIM, PAGES = 64, 40
ALL = Full()
CASES = {
    "plain": dict(heads=4, kv_heads=1),
    "window": dict(heads=6, kv_heads=2, need=Window(9)),
    "short window": dict(heads=2, kv_heads=2, need=Window(1)),
    "soft cap": dict(heads=2, kv_heads=2, softcap=5.0),
    "sinks": dict(heads=4, kv_heads=2, sinks=True),
    "sinks and window": dict(heads=4, kv_heads=2, sinks=True, need=Window(6)),
}


def layers_of(page_size=4, dtype="bfloat16", need=ALL, **more):
    return AttentionLayers(key_dim=DIM, value_dim=DIM, page_size=page_size, dtype=dtype, need=need, scale=0.2, **more)


class Scene:
    """A layer's pages, and rows whose tables are anywhere in them."""

    def __init__(self, layers, seed):
        self.layers, self.random = layers, np.random.default_rng(seed)
        self.torch = torch.Generator().manual_seed(seed)
        self.dtype = getattr(torch, layers.dtype)
        shape = PAGES, layers.page_size, layers.kv_heads, DIM
        self.keys, self.values = (self.drawn(*shape) for _ in range(2))
        self.sinks = self.drawn(layers.heads).float() if layers.sinks else None

    def drawn(self, *shape):
        return torch.randn(*shape, generator=self.torch).to(self.dtype)

    def rows(self, spans):
        """Rows (start, count), and as the reference has them."""
        size, counts, tokens, pages, ragged = self.layers.page_size, [], [], [], []
        for start, count in spans:
            low = self.layers.need.lo(start) // size
            own = self.random.permutation(PAGES)[: -(-(start + count) // size)].astype(np.int32)
            ragged.append(RaggedRow(start, count, np.where(np.arange(len(own)) < low, np.int32(-1), own)))
            counts.append(count)
            tokens.append(start + count - low * size)
            pages.append(own[low:])
        ids = [np.array(each, np.int32) for each in (counts, tokens)]
        return AttentionRows(*ids, np.concatenate(pages)), ragged

    def check(self, run, rows, ragged):
        """Run it over queries that are a part of something wider, as merged projections give them."""
        layers, tokens = self.layers, int(rows.counts.sum())
        query = self.drawn(tokens, layers.heads + 3, DIM)[:, 1 : 1 + layers.heads]
        out = torch.full((tokens, layers.heads, DIM), torch.nan, dtype=self.dtype)
        run.run(query, self.keys, self.values, out, self.sinks)
        need = layers.need
        batch = Batch(ragged, layers.page_size, "cpu", window=need.tokens if isinstance(need, Window) else None)
        sides = query.float(), self.keys.float(), self.values.float()
        want = paged_attention(*sides, batch, layers.scale, self.sinks, layers.softcap)
        torch.testing.assert_close(out.float(), want, rtol=2e-2, atol=2e-2)


@pytest.fixture
def attention(double):
    return FlashInfer(double, FlashInferConfig(workspace_mib=1), torch.device("cpu"))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_prompts_and_decodes_say_what_the_reference_says(attention, case, page_size):
    layers = layers_of(page_size, "float16" if page_size == 1 else "bfloat16", **CASES[case])
    assert attention.lacks(layers) is None
    scene = Scene(layers, page_size)
    prompts, decodes = attention.prompts(layers), attention.decodes(layers)
    most = PAGES * page_size // 2
    for count in (1, 3):  # planned anew, by the same runs
        starts = scene.random.integers(0, min(most, 30), count)
        counts = [int(scene.random.integers(1, min(most, 8))) for _ in starts]
        rows, ragged = scene.rows(list(zip(starts.tolist(), counts, strict=True)))
        prompts.plan(rows)
        scene.check(prompts, rows, ragged)
        rows, ragged = scene.rows([(int(start), 1) for start in starts])
        decodes.plan(rows)
        for _ in range(2):  # each layer of the step
            scene.check(decodes, rows, ragged)


@pytest.mark.parametrize("case", CASES)
def test_a_graph_computes_what_was_planned_last(attention, case):
    """All that a captured run reads is in buffers that stay where they are; graphs of other sizes come between."""
    layers = layers_of(**CASES[case])
    scene = Scene(layers, 5)
    runs = {rows: attention.decodes(layers, (rows, rows * PAGES)) for rows in (4, 2)}
    first = {rows: run._wrapper.pages.data_ptr() for rows, run in runs.items()}
    assert first[2] == first[4], "graphs of some layers are planned one at a time, so they share memory for page ids"
    for size, starts in ((4, (3, 0, 17, 90)), (2, (15, 16)), (4, (31, 4, 5, 6)), (2, (0, 0))):
        rows, ragged = scene.rows([(start, 1) for start in starts])
        runs[size].plan(rows)
        scene.check(runs[size], rows, ragged)
        assert runs[size]._wrapper.pages.data_ptr() == first[size]


def test_kinds_of_layers_in_one_graph_do_not_write_over_each_other(attention):
    kinds = [layers_of(**CASES[case]) for case in ("plain", "window", "sinks")]
    scenes = [Scene(layers, number) for number, layers in enumerate(kinds)]
    runs = [attention.decodes(layers, (2, 2 * PAGES)) for layers in kinds]
    planned = [scene.rows([(21, 1), (40, 1)]) for scene in scenes]
    for run, (rows, _) in zip(runs, planned, strict=True):
        run.plan(rows)
    for run, scene, (rows, ragged) in zip(runs, scenes, planned, strict=True):
        scene.check(run, rows, ragged)


@pytest.mark.parametrize(
    ("layers", "word"),
    [
        (layers_of(heads=4, kv_heads=1, dtype="float32"), "float32"),
        (layers_of(heads=4, kv_heads=1, need=Chunked(8)), "chunks"),
        (AttentionLayers(4, 1, 80, 80, 16, "bfloat16", Full(), 1.0), "80"),
        (AttentionLayers(4, 1, 128, 64, 16, "bfloat16", Full(), 1.0), "values of 64"),
        (layers_of(heads=4, kv_heads=1, sinks=True, softcap=3.0), "sinks with a soft cap"),
    ],
)
def test_what_it_cannot_do_it_says(attention, layers, word):
    assert word in attention.lacks(layers)


def test_a_version_without_sinks_says_so(double, monkeypatch):
    monkeypatch.delattr(double, "BatchAttentionWithAttentionSinkWrapper")
    attention = FlashInfer(double, FlashInferConfig(workspace_mib=1), torch.device("cpu"))
    assert attention.lacks(layers_of(heads=4, kv_heads=1, sinks=True)) == "sinks, in this version"
    assert attention.lacks(layers_of(heads=4, kv_heads=1)) is None


@pytest.mark.parametrize(
    ("setting", "heads", "on"),
    [("auto", 1, 0), ("auto", 4, 1), ("auto", 5, 1), ("off", 8, 0), ("on", 1, 1)],
)
def test_tensor_cores_where_many_heads_share_keys(double, setting, heads, on):
    attention = FlashInfer(double, FlashInferConfig(workspace_mib=1, tensor_cores=setting), torch.device("cpu"))
    assert attention.decodes(layers_of(heads=heads, kv_heads=1))._wrapper.tensor_cores == bool(on)
