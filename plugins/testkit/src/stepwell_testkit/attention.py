"""The kit of attention over pages. Provisional, as its contract is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt
import pytest

from stepwell import AttentionLayers, AttentionRows, AttentionRun, Capability, Chunked, Full, PagedAttention, Window
from stepwell_testkit.kit import Kit

Array = npt.NDArray[np.float32]
Span = tuple[int, int]
"""Tokens before a row's own, and its own."""
PAGES = 48
LOUD = 50.0
"""What tokens of strangers hold; whoever sees one is far off."""


class AttentionAdapter(Protocol):
    """Arrays to a backend's tensors and back."""

    def give(self, array: Array, dtype: str) -> Any:
        """A tensor with these values."""

    def take(self, tensor: Any) -> Array:
        """The values of a tensor."""


class PlainAdapter:
    """For attention on numpy arrays."""

    def give(self, array: Array, dtype: str) -> Array:
        return array.astype(dtype)

    def take(self, tensor: Array) -> Array:
        return tensor.astype(np.float32)


class PagedAttentionKit(Kit):
    """Tests a `PagedAttention`: give the fixture `attention`.

    `kinds` are layers; what is tested are those that it does not refuse, each without and with a window, a chunk, a
    soft cap and sinks. Say there which dims, dtypes and page sizes it is for.
    """

    required: ClassVar[tuple[str, ...]] = ("attention",)
    kinds: ClassVar[Sequence[AttentionLayers]] = (AttentionLayers(4, 2, 64, 64, 4, "float32", Full(), 0.125),)
    tolerance: ClassVar[float] = 1e-4
    """Most that an answer may be off, for what precision the backend computes with; values are about 1."""
    adapter: ClassVar[AttentionAdapter] = PlainAdapter()

    def test_it_is_attention_that_does_something(self, attention: PagedAttention[Any]) -> None:
        assert isinstance(attention, PagedAttention)
        for kind in self.kinds:
            assert attention.lacks(kind) is None, f"{kind} is among its kinds"
        told = [attention.lacks(layers) for kind in self.kinds for layers in _variants(kind).values()]
        assert all(why is None or why for why in told), "a refusal without a word"

    @pytest.mark.parametrize("variant", ["plain", "window", "chunk", "softcap", "sinks", "sinks and window"])
    @pytest.mark.parametrize("sort", ["prompts", "decodes"])
    def test_answers_equal_a_plain_loop(self, attention: PagedAttention[Any], variant: str, sort: str) -> None:
        for scene in self._scenes(attention, variant):
            run = attention.prompts(scene.layers) if sort == "prompts" else attention.decodes(scene.layers)
            for _ in range(3):  # planned anew
                spans = scene.spans(int(scene.random.integers(1, 6)), one=sort == "decodes")
                scene.check(run, *scene.planned(run, spans))

    def test_layers_of_a_step_share_its_plan(self, attention: PagedAttention[Any]) -> None:
        for scene in self._scenes(attention, "plain"):
            run = attention.prompts(scene.layers)
            planned = scene.planned(run, [(9, 5), (0, 1), (0, 11)])
            for _ in range(3):
                scene.fill()
                scene.check(run, *planned)

    def test_kinds_of_layers_are_planned_beside_each_other(self, attention: PagedAttention[Any]) -> None:
        graphs = [None, (2, 2 * PAGES)] if Capability.GRAPH_SAFE in self.provides else [None]
        for graph in graphs:
            scenes = [scene for variant in ("plain", "window") for scene in self._scenes(attention, variant)]
            runs = [attention.decodes(scene.layers, graph) for scene in scenes]
            planned = [scene.planned(run, [(20, 1), (11, 1)]) for scene, run in zip(scenes, runs, strict=True)]
            for scene, run, what in zip(scenes, runs, planned, strict=True):
                scene.check(run, *what)

    def test_graphs_take_as_many_rows_as_they_have_and_compute_what_was_planned_last(
        self, attention: PagedAttention[Any]
    ) -> None:
        self.need(Capability.GRAPH_SAFE)
        for scene in self._scenes(attention, "plain"):
            runs = {rows: attention.decodes(scene.layers, (rows, rows * PAGES)) for rows in (5, 2)}
            for rows in (5, 2, 5, 2):
                scene.check(runs[rows], *scene.planned(runs[rows], scene.spans(rows, one=True)))

    def test_close_is_the_last_call(self, attention: PagedAttention[Any]) -> None:
        attention.close()

    def _scenes(self, attention: PagedAttention[Any], variant: str) -> list[_Scene]:
        layers = [_variants(kind)[variant] for kind in self.kinds]
        does = [kind for kind in layers if attention.lacks(kind) is None]
        if not does:
            pytest.skip(f"does not do {variant}")
        return [_Scene(kind, self.adapter, self.tolerance) for kind in does]


def _variants(kind: AttentionLayers) -> dict[str, AttentionLayers]:
    return {
        "plain": kind,
        "window": replace(kind, need=Window(6)),
        "chunk": replace(kind, need=Chunked(8)),
        "softcap": replace(kind, softcap=2.0),
        "sinks": replace(kind, sinks=True),
        "sinks and window": replace(kind, sinks=True, need=Window(6)),
    }


@dataclass(frozen=True, slots=True)
class _Row:
    span: Span
    low: int
    """First token in its pages."""
    pages: npt.NDArray[np.int32]


class _Scene:
    """A layer's pages, and rows whose pages lie anywhere among them."""

    def __init__(self, layers: AttentionLayers, adapter: AttentionAdapter, tolerance: float) -> None:
        self.layers, self.adapter, self.tolerance = layers, adapter, tolerance
        self.random = np.random.default_rng(1)
        self.fill()

    def fill(self) -> None:
        """Another layer's pages."""
        layers = self.layers
        shape = PAGES, layers.page_size, layers.kv_heads
        self.keys, self.values = self._drawn(*shape, layers.key_dim), self._drawn(*shape, layers.value_dim)
        self.sinks = self.random.standard_normal(layers.heads).astype(np.float32) if layers.sinks else None

    def spans(self, rows: int, *, one: bool) -> list[Span]:
        """Rows of any length; a page's last token and the one behind it among them."""
        most = min(40, PAGES // 6 * self.layers.page_size - 12)
        starts = [0, self.layers.page_size - 1, self.layers.page_size, *self.random.integers(0, max(most, 1), rows)]
        chosen = [int(start) for start in self.random.permutation(starts)[:rows]]
        return [(start, 1 if one else int(self.random.integers(1, 12))) for start in chosen]

    def planned(self, run: AttentionRun[Any], spans: Sequence[Span]) -> tuple[Sequence[_Row]]:
        """Plan rows; what was told is written over at once."""
        ids, rows, size = self.random.permutation(PAGES).astype(np.int32), [], self.layers.page_size
        for start, count in spans:
            low = self.layers.need.lo(start) // size
            held = -(-(start + count) // size) - low
            rows.append(_Row((start, count), low * size, ids[:held]))
            ids = ids[held:]
        told = AttentionRows(
            np.array([count for _, count in spans], np.int32),
            np.array([sum(row.span) - row.low for row in rows], np.int32),
            np.concatenate([row.pages for row in rows]),
        )
        run.plan(told)
        for numbers in (told.counts, told.tokens, told.pages):
            numbers.fill(-7)
        return (rows,)

    def check(self, run: AttentionRun[Any], rows: Sequence[_Row]) -> None:
        """Run over what is in the pages now."""
        layers, give = self.layers, self.adapter.give
        query = self._drawn(sum(row.span[1] for row in rows), layers.heads, layers.key_dim)
        out = give(np.full((*query.shape[:2], layers.value_dim), np.nan, np.float32), layers.dtype)
        sinks = None if self.sinks is None else give(self.sinks, "float32")
        keys, values = self._loud_elsewhere(rows)
        run.run(give(query, layers.dtype), give(keys, layers.dtype), give(values, layers.dtype), out, sinks)
        off = np.abs(self.adapter.take(out) - self._want(query, rows)).max()
        assert off <= self.tolerance, f"off by {off:.3g} in {layers}, rows {[row.span for row in rows]}"

    def _drawn(self, *shape: int) -> Array:
        """Values that any dtype has exactly enough."""
        drawn = self.random.standard_normal(shape).astype(np.float32)
        return self.adapter.take(self.adapter.give(drawn, self.layers.dtype))

    def _loud_elsewhere(self, rows: Sequence[_Row]) -> tuple[Array, Array]:
        own = np.zeros((PAGES, self.layers.page_size), bool)
        for row in rows:
            tokens = np.arange(sum(row.span) - row.low)
            own[row.pages[tokens // self.layers.page_size], tokens % self.layers.page_size] = True
        keys, values = self.keys.copy(), self.values.copy()
        keys[~own], values[~own] = LOUD, LOUD
        return keys, values

    def _want(self, query: Array, rows: Sequence[_Row]) -> Array:
        layers, found, at = self.layers, [], 0
        group = layers.heads // layers.kv_heads
        for row in rows:
            start, count = row.span
            keys, values = (side[row.pages].reshape(-1, *side.shape[2:]) for side in (self.keys, self.values))
            for place in range(start, start + count):
                span = slice(layers.need.lo(place) - row.low, place + 1 - row.low)
                k, v = (np.repeat(side[span], group, axis=1) for side in (keys, values))
                scores = np.einsum("hd,thd->ht", query[at], k) * layers.scale
                if layers.softcap is not None:
                    scores = layers.softcap * np.tanh(scores / layers.softcap)
                if self.sinks is not None:
                    scores = np.concatenate([scores, self.sinks[:, None]], 1)
                odds = np.exp(scores - scores.max(1, keepdims=True))
                odds /= odds.sum(1, keepdims=True)
                found.append(np.einsum("ht,thd->hd", odds[:, : v.shape[0]], v))
                at += 1
        return np.stack(found)
