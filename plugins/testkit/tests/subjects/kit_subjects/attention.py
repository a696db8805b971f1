"""Attention on numpy arrays, and what can be wrong with it."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from stepwell import AttentionRun, Chunked, PagedAttention, Window


class Loop(AttentionRun):
    """Row by row and query by query."""

    softcap = sinks = scale = True
    window, first, shared, copies, fixed = 0, 0, None, True, None

    def __init__(self, layers, graph=None):
        self.layers, self.graph, self.mine = layers, graph, SimpleNamespace()

    def plan(self, rows):
        numbers = (rows.counts, rows.tokens, rows.pages)
        where = self.shared or self.mine
        if self.fixed is None or not hasattr(where, "counts"):
            where.counts, where.tokens, where.pages = (n.copy() if self.copies else n for n in numbers)

    def run(self, query, keys, values, out, sinks=None):
        where, layers, at, page = self.shared or self.mine, self.layers, 0, 0
        for count, tokens in zip(where.counts.tolist(), where.tokens.tolist(), strict=True):
            held = -(-tokens // layers.page_size)
            own = where.pages[page : page + held]
            page += held
            k, v = (side[own].reshape(-1, *side.shape[2:])[:tokens] for side in (keys, values))
            for place in range(tokens - count, tokens):
                out[at] = self.one(query[at], k, v, place + 1 + self.first, sinks)
                at += 1

    def one(self, query, keys, values, end, sinks):
        layers, low = self.layers, 0
        if isinstance(layers.need, Window):
            low = max(0, end - 1 - layers.need.tokens - self.window)
        k, v = (np.repeat(side[low:end], layers.heads // layers.kv_heads, 1) for side in (keys, values))
        scores = np.einsum("hd,thd->ht", query, k) * (layers.scale if self.scale else 1)
        if layers.softcap is not None and self.softcap:
            scores = layers.softcap * np.tanh(scores / layers.softcap)
        if sinks is not None and self.sinks:
            scores = np.concatenate([scores, sinks[:, None]], 1)
        odds = np.exp(scores - scores.max(1, keepdims=True))
        return np.einsum("ht,thd->hd", (odds / odds.sum(1, keepdims=True))[:, : len(v)], v)


class Attention(PagedAttention):
    """All but chunks."""

    loop = Loop

    def lacks(self, layers):
        return "chunks" if isinstance(layers.need, Chunked) else None

    def decodes(self, layers, graph=None):
        return self.loop(layers, graph)

    def prompts(self, layers):
        return self.loop(layers)


def _wrong(**faults):
    return type("Wrong", (Attention,), {"loop": type("WrongLoop", (Loop,), faults)})


NoSoftcap = _wrong(softcap=False)
NoSinks = _wrong(sinks=False)
NoScale = _wrong(scale=False)
LongWindow = _wrong(window=1)
SeesTheNext = _wrong(first=1)
MissesItself = _wrong(first=-1)
OnePlanForAll = _wrong(shared=SimpleNamespace())
KeepsWhatItWasLent = _wrong(copies=False)
PlansOnce = _wrong(fixed=True)


class RefusesAll(Attention):
    def lacks(self, layers):
        return "anything"


class RefusesWithoutAWord(Attention):
    def lacks(self, layers):
        return "" if isinstance(layers.need, Chunked) else None


class RaisesOnClose(Attention):
    def close(self):
        raise OSError("closed already")
