"""Attention straight from the pages, and writes into them, against the plain reference: poison is never read."""

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from stepwell_kernels import Batch, RaggedRow, paged_attention
from stepwell_kernels.paged import StepBuffers, Tables

pytest.importorskip("triton")
from stepwell_kernels.paged import prefill
from stepwell_kernels.paged.attend import attend_step
from stepwell_kernels.paged.decode import Scratch
from stepwell_kernels.paged.write import write_kv

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"


class Case:
    """Random rows over scattered pages; whatever must not be read is NaN."""

    def __init__(self, rows, page_size, kv_heads, dims, sees=("all", 0), dtype=torch.float32, seed=0, pad=(0, 0)):
        self.random = np.random.default_rng(seed)
        torch.manual_seed(seed)
        self.rows, self.dtype, self.sees = rows, dtype, sees
        self.page_size, (kind, sight) = page_size, sees
        self.arguments = {} if kind == "all" else {kind: sight}
        needs = [-(-(start + count) // page_size) for start, count in rows]
        slots = len(rows) + 2
        total = sum(needs) + 5
        ids = self.random.permutation(total).astype(np.int32)
        pages = np.full((slots + 1, max(needs, default=0) + 3), -1, np.int32)
        self.order = self.random.permutation(slots)[: len(rows)].tolist()
        for slot, need, end in zip(self.order, needs, np.cumsum(needs), strict=True):
            pages[slot, :need] = ids[end - need : end]
        self.keys, self.values = (
            torch.full((total, page_size, kv_heads, dim), torch.nan, dtype=dtype, device=DEVICE) for dim in dims
        )
        self.clean = [torch.zeros_like(side) for side in (self.keys, self.values)]
        for (start, _), slot in zip(rows, self.order, strict=True):
            seen = np.arange(self._first(start), start)
            for side, clean in zip((self.keys, self.values), self.clean, strict=True):
                tokens = torch.randn(len(seen), *side.shape[2:], dtype=dtype).to(DEVICE)
                spots = (torch.from_numpy(n).to(DEVICE) for n in (pages[slot, seen // page_size], seen % page_size))
                page, spot = (n.long() for n in spots)
                side[page, spot] = tokens
                clean[page, spot] = tokens
            pages[slot, : self._first(start) // page_size] = -1
        self.host = pages
        self.tables = Tables(torch.from_numpy(pages).to(DEVICE), page_size, **self.arguments)
        tokens = sum(count for _, count in rows)
        self.buffers = StepBuffers(DEVICE, len(rows) + pad[0], tokens + sum(pad), self.tables.idle)
        given = [(slot, *row) for slot, row in zip(self.order, rows, strict=True)]
        self.step = self.buffers.step(self.buffers.fill(given, len(rows) + pad[0], tokens + sum(pad)))

    def _first(self, place):
        kind, tokens = self.sees
        return {"all": 0, "window": max(0, place - tokens), "chunk": place // max(tokens, 1) * tokens}[kind]

    @property
    def own(self):
        """Flat tokens that are not padding, in order."""
        return (self.step.token_slots != self.tables.idle).nonzero()[:, 0]

    def write(self):
        k, v = (
            torch.randn(self.step.shape.tokens, *side.shape[2:], dtype=self.dtype).to(DEVICE)
            for side in (self.keys, self.values)
        )
        write_kv(k, v, self.keys, self.values, self.tables, self.step.token_slots, self.step.positions)
        places = self.step.positions[self.own].cpu().numpy()
        slots = self.step.token_slots[self.own].cpu().numpy()
        pages = torch.from_numpy(self.host[slots, places // self.page_size]).long().to(DEVICE)
        for clean, new in zip(self.clean, (k, v), strict=True):
            clean[pages, torch.from_numpy(places % self.page_size).to(DEVICE)] = new[self.own]

    def check(self, heads, sinks=False, softcap=None, scale=0.3):
        self.write()
        tokens, dim = self.step.shape.tokens, self.keys.shape[3]
        for side, clean in zip((self.keys, self.values), self.clean, strict=True):
            assert torch.equal(torch.nan_to_num(side), clean)
        query = torch.randn(tokens, heads + 2, dim, dtype=self.dtype).to(DEVICE)[:, :heads]
        sink = (torch.randn(heads) * 3).to(DEVICE) if sinks else None
        want = self.reference(query, sink, softcap, scale)
        scratch = Scratch(DEVICE, self.step.shape.rows, heads, self.keys.shape[2], self.values.shape[3])
        idle = torch.ones(tokens, dtype=torch.bool, device=DEVICE)
        idle[self.own] = False
        for _ in range(2):  # the second finds the scratch as the first has left it
            got = attend_step(query, self.keys, self.values, self.tables, self.step, scratch, scale, sink, softcap)
            assert not got[idle].any()
            error = (got[self.own].double() - want).norm(dim=-1) / want.norm(dim=-1)
            assert error.max() < {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}[self.dtype]
        assert not scratch.arrived.any()

    def reference(self, query, sink, softcap, scale):
        batch = Batch(
            [RaggedRow(s, c, self.host[slot]) for (s, c), slot in zip(self.rows, self.order, strict=True)],
            self.page_size,
            DEVICE,
            **self.arguments,
        )
        return paged_attention(query[self.own].double(), *(c.double() for c in self.clean), batch, scale, sink, softcap)


CASES = {
    "decode": dict(rows=[(0, 1), (40, 1), (17, 1)], pad=(2, 0)),
    "decode-long": dict(rows=[(700, 1), (3, 1)], page_size=16),
    "window": dict(rows=[(300, 1), (5, 1), (90, 20), (0, 9)], sees=("window", 33)),
    "chunk": dict(rows=[(300, 1), (31, 1), (90, 40), (0, 9)], sees=("chunk", 32)),
    "prompt": dict(rows=[(0, 70), (33, 5), (2, 1)], pad=(0, 7)),
    "mixed": dict(rows=[(21, 1), (33, 45), (0, 3), (64, 2)], pad=(1, 2)),
    "tiny-pages": dict(rows=[(21, 1), (33, 12)], page_size=1),
    "odd-pages": dict(rows=[(21, 1), (33, 12)], page_size=7),
    "big-pages": dict(rows=[(257, 1), (255, 12)], page_size=256),
    "values": dict(rows=[(21, 1), (33, 12)], dims=(24, 16)),
    "dim-80": dict(rows=[(21, 1), (33, 12)], dims=(80, 80)),
    "split-prompt": dict(rows=[(1100, 5), (0, 2)], page_size=16, sinks=True),
    "sinks": dict(rows=[(200, 1), (21, 1), (33, 12)], sinks=True, pad=(1, 1)),
    "softcap": dict(rows=[(200, 1), (21, 1), (33, 12)], softcap=2.0),
    "one-head-each": dict(rows=[(21, 1), (33, 12)], heads=2),
    "five-heads-each": dict(rows=[(21, 1), (33, 12)], heads=10, sinks=True, sees=("window", 9)),
}


@pytest.mark.parametrize("name", CASES)
def test_attention_equals_the_reference(name):
    case = {
        "page_size": 16,
        "kv_heads": 2,
        "dims": (16, 16),
        "heads": 8,
        "sinks": False,
        "softcap": None,
        **CASES[name],
    }
    heads, sinks, softcap = (case.pop(key) for key in ("heads", "sinks", "softcap"))
    Case(**case).check(heads, sinks, softcap)


@settings(max_examples=100 if CUDA else 10, deadline=None, phases=(Phase.explicit, Phase.generate))
@given(
    decodes=st.lists(st.integers(0, 400), max_size=5),
    prompts=st.lists(st.tuples(st.integers(0, 90), st.integers(1, 60)), max_size=3),
    page_size=st.sampled_from([4, 16]),
    sees=st.sampled_from([("all", 0), ("window", 33), ("window", 0), ("chunk", 24)]),
    sinks=st.booleans(),
    pad=st.tuples(st.integers(0, 2), st.integers(0, 40)),
    seed=st.integers(0, 2**16),
)
def test_attention_of_any_rows_equals_the_reference(decodes, prompts, page_size, sees, sinks, pad, seed):
    rows = [(start, 1) for start in decodes] + prompts
    if rows:
        Case(rows, page_size, 2, (16, 16), sees, seed=seed, pad=pad).check(8, sinks)


BIG = [(2047, 1), (16001, 1), (90, 1), (0, 1), (0, 1000), (3000, 700), (5000, 64)]
REAL = {
    "llama": dict(rows=BIG, heads=32, pad=(3, 100)),
    "window": dict(rows=BIG, heads=32, sees=("window", 1023)),
    "chunk": dict(rows=BIG, heads=40, sees=("chunk", 2048)),
    "gpt-oss": dict(rows=BIG, heads=64, dims=(64, 64), sinks=True, sees=("window", 127)),
    "gemma": dict(rows=BIG, heads=16, dims=(256, 256), softcap=50.0, page_size=64),
    "one-head": dict(rows=BIG, heads=16, kv_heads=1, dims=(96, 96), page_size=1),
    "uneven-dims": dict(rows=BIG, heads=16, dims=(192, 128), page_size=256),
    "short-over-long": dict(rows=[(8000, 17), (12000, 3)], heads=32),
    "many": dict(rows=[(int(n), 1) for n in np.random.default_rng(0).integers(0, 3000, 200)], heads=32, pad=(56, 0)),
}


HALVES = [torch.bfloat16, torch.float16]


@pytest.mark.gpu
@pytest.mark.skipif(not CUDA, reason="this machine has no CUDA device")
@pytest.mark.parametrize("dtype", [*HALVES, torch.float32], ids=str)
@pytest.mark.parametrize("name", REAL)
def test_attention_equals_the_reference_at_real_sizes(name, dtype, monkeypatch):
    """By the kernels that any device can run."""
    monkeypatch.setattr(prefill, "_fits_hopper", lambda *_: False)
    check(REAL[name], dtype)


@pytest.mark.gpu
@pytest.mark.skipif(not CUDA or torch.cuda.get_device_capability()[0] != 9, reason="this machine has no Hopper device")
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", [name for name in REAL if name not in ("one-head", "uneven-dims", "many")])
def test_attention_on_hopper_equals_the_reference(name, dtype):
    assert prefill._streams(torch.device("cuda:0"))
    check(REAL[name], dtype)


def check(case, dtype):
    case = {"page_size": 16, "kv_heads": 8, "dims": (128, 128), "sinks": False, "softcap": None, **case}
    heads, sinks, softcap = (case.pop(key) for key in ("heads", "sinks", "softcap"))
    Case(**case, dtype=dtype).check(heads, sinks, softcap, case["dims"][0] ** -0.5)
