"""Paged attention and copies against the plainest reference, on random inputs and poisoned outputs."""

import itertools
import mmap

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell_kernels import (
    Batch,
    HostPages,
    PagePool,
    PageShape,
    RaggedRow,
    load_layer,
    paged_attention,
    save,
    write_pages,
)

CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, CUDA])]


def first(place, sees):
    """First token that a query at `place` sees."""
    kind, tokens = sees
    return {"all": 0, "window": max(0, place - tokens), "chunk": place // max(tokens, 1) * tokens}[kind]


def arguments(sees):
    return {} if sees[0] == "all" else {sees[0]: sees[1]}


def reference(query, k, v, start, sees, scale, sinks=None, softcap=None):
    """One row, one query at a time, in float64."""
    groups = query.shape[1] // k.shape[1]
    out = torch.empty(*query.shape[:2], v.shape[2], dtype=torch.float64)
    for i in range(query.shape[0]):
        span = slice(first(start + i, sees), start + i + 1)
        for head in range(query.shape[1]):
            scores = (k[span, head // groups].double() @ query[i, head].double()) * scale
            if softcap is not None:
                scores = torch.tanh(scores / softcap) * softcap
            if sinks is not None:
                scores = torch.cat([scores, sinks[head : head + 1].double()])
            weights = torch.softmax(scores, 0)[: k[span].shape[0]]
            out[i, head] = weights @ v[span, head // groups].double()
    return out


def scattered(lengths, page_size, generator):
    need = [-(-n // page_size) for n in lengths]
    ids = torch.randperm(sum(need) + 3, generator=generator).numpy().astype(np.int32)
    cuts = np.cumsum([0, *need])
    return [ids[a:b] for a, b in itertools.pairwise(cuts)], sum(need) + 3


def left_behind(start, sees, page_size):
    """How many pages of a row no query from `start` on sees."""
    return first(start, sees) // page_size


SEES = [("all", 0), *(("window", n) for n in (1, 4, 5, 16, 30, 33)), *(("chunk", n) for n in (1, 8, 24, 32, 50))]


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=120, deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(0, 70), st.integers(1, 40)), min_size=1, max_size=6),
    page_size=st.sampled_from([1, 4, 16, 64]),
    sees=st.sampled_from(SEES),
    block=st.sampled_from([1, 7, 1024]),
    sunk=st.booleans(),
    softcap=st.sampled_from([None, 2.0]),
    value_dim=st.sampled_from([8, 4]),
    seed=st.integers(0, 2**16),
)
def test_paged_attention_equals_the_reference(device, rows, page_size, sees, block, sunk, softcap, value_dim, seed):
    """Also with NaN in every page that is not a row's own, or that its window or chunk has left behind."""
    generator = torch.Generator().manual_seed(seed)
    tables, pages = scattered([start + count for start, count in rows], page_size, generator)
    keys, values = (torch.full((pages, page_size, 2, dim), torch.nan, device=device) for dim in (8, value_dim))
    full = [
        [torch.randn(start + count, 2, dim, generator=generator) for dim in (8, value_dim)] for start, count in rows
    ]
    own = []
    for (start, _), table, (k, v) in zip(rows, tables, full, strict=True):
        for side, old in ((keys, k), (values, v)):
            side[torch.from_numpy(table).long()] = 0  # the tail of a last page is read, and masked
            if start:
                write_pages(side, old[:start].to(device), Batch([RaggedRow(0, start, table)], page_size, device))
            side[torch.from_numpy(table[: left_behind(start, sees, page_size)]).long()] = torch.nan
        own.append(table.copy())
        own[-1][: left_behind(start, sees, page_size)] = -1
    ragged = [RaggedRow(s, c, table) for (s, c), table in zip(rows, own, strict=True)]
    batch = Batch(ragged, page_size, device, block=block, **arguments(sees))
    query = torch.randn(batch.tokens, 6, 8, generator=generator)
    for number, side in enumerate((keys, values)):
        new = torch.cat([f[number][start:] for f, (start, _) in zip(full, rows, strict=True)])
        write_pages(side, new.to(device), batch)
    sinks = torch.randn(6, generator=generator) * 3 if sunk else None
    on_device = None if sinks is None else sinks.to(device)
    got = paged_attention(query.to(device), keys, values, batch, 0.3, on_device, softcap).cpu()
    at = 0
    for (start, count), (k, v) in zip(rows, full, strict=True):
        want = reference(query[at : at + count], k, v, start, sees, 0.3, sinks, softcap)
        torch.testing.assert_close(got[at : at + count].double(), want, atol=1e-5, rtol=1e-4)
        at += count


def test_scores_of_a_long_prompt_are_made_in_parts(monkeypatch):
    monkeypatch.setattr("stepwell_kernels.scores.SCORES", 6 * 50 * 7)
    k, v, query = (torch.randn(50, heads, 8) for heads in (2, 2, 6))
    pool = PagePool(PageShape(1, 16, 2, 8, torch.float32), 4, "cpu")
    batch = Batch([RaggedRow(0, 50, np.arange(4, dtype=np.int32))], 16, "cpu")
    write_pages(pool.keys(0), k, batch)
    write_pages(pool.values(0), v, batch)
    sinks = torch.randn(6)
    got = paged_attention(query, pool.keys(0), pool.values(0), batch, 0.3, sinks, 5.0)
    want = reference(query, k, v, 0, ("all", 0), 0.3, sinks, 5.0)
    torch.testing.assert_close(got.double(), want, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_sink_in_half_precision(dtype):
    k, v, query = (torch.randn(20, heads, 8, dtype=dtype) for heads in (2, 2, 6))
    batch = Batch([RaggedRow(0, 20, np.arange(2, dtype=np.int32))], 16, "cpu", window=6)
    pool = PagePool(PageShape(1, 16, 2, 8, dtype), 2, "cpu")
    write_pages(pool.keys(0), k, batch)
    write_pages(pool.values(0), v, batch)
    sinks = torch.randn(6, dtype=dtype)
    got = paged_attention(query, pool.keys(0), pool.values(0), batch, 0.3, sinks)
    assert got.dtype == dtype
    want = reference(query, k, v, 0, ("window", 6), 0.3, sinks)
    torch.testing.assert_close(got.double(), want, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize(("sees", "blocks"), [(("all", 0), 2), (("window", 7), 12), (("window", 500), 3)])
def test_blocks_of_a_window_are_as_long_as_it(sees, blocks):
    batch = Batch([RaggedRow(0, 1500, np.arange(94, dtype=np.int32))], 16, "cpu", **arguments(sees))
    assert len(batch.prompts) == blocks


def test_a_window_and_a_chunk_are_not_for_one_layer():
    with pytest.raises(ValueError, match="not both"):
        Batch([], 16, "cpu", window=3, chunk=8)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("value_dim", [None, 4])
@pytest.mark.parametrize("page_size", [1, 16])
def test_save_then_load_brings_every_byte_back_and_touches_nothing_else(device, dtype, page_size, value_dim):
    shape = PageShape(3, page_size, 2, 8, dtype, value_dim)
    pool = PagePool(shape, 7, device)
    for side in pool.sides:
        side.copy_(torch.randn(side.shape))
    stride, offset, slots = 4096 * (1 + shape.page_bytes // 4096), 8192, 5
    memory = memoryview(mmap.mmap(-1, offset + slots * stride))
    memory[:] = b"\xa5" * len(memory)
    host = HostPages(memory, offset, stride, slots, shape)
    source = [side.clone() for side in pool.sides]
    device_ids, host_ids = torch.tensor([5, 0, 3], device=device), torch.tensor([4, 1, 2])
    save(pool, host, device_ids, host_ids)

    untouched = [memory[offset + s * stride : offset + (s + 1) * stride] for s in (0, 3)]
    untouched += [memory[offset + s * stride + shape.page_bytes : offset + (s + 1) * stride] for s in (1, 2, 4)]
    assert all(bytes(part) == b"\xa5" * len(part) for part in untouched)

    for layer in range(shape.layers):  # the order of bytes that stored pages have
        parts = [side[layer, device_ids[0]].reshape(-1) for side in source]
        end = (layer + 1) * (shape.page_bytes // shape.layers)
        at = offset + 4 * stride + end - shape.page_bytes // shape.layers
        assert (
            bytes(memory[at : offset + 4 * stride + end]) == torch.cat(parts).cpu().view(torch.uint8).numpy().tobytes()
        )

    for side in pool.sides:
        side.fill_(7)
    targets = torch.tensor([2, 6, 1], device=device)
    for layer in range(shape.layers):
        load_layer(pool, host, layer, targets, host_ids)
    for side, was in zip(pool.sides, source, strict=True):
        assert torch.equal(side[:, targets], was[:, device_ids])
        assert bool((side[:, [0, 3, 4, 5]] == 7).all())
    del host


@pytest.mark.parametrize("count", [1, 5])
def test_a_page_that_is_missing_is_an_error_and_never_another_page(count):
    lacks = np.array([3, -1, 5], np.int32)
    with pytest.raises(ValueError, match="needs a page that its table lacks"):
        Batch([RaggedRow(30, count, lacks)], 16, "cpu")
    with pytest.raises(ValueError, match="has a table of 1 pages"):
        Batch([RaggedRow(30, count, lacks[:1])], 16, "cpu")


def test_rows_of_similar_length_share_a_gather_and_others_do_not():
    def rows(*starts):
        return [RaggedRow(start, 1, np.arange(80, dtype=np.int32)) for start in starts]

    assert len(Batch(rows(*range(64)), 16, "cpu").decodes) == 1
    assert len(Batch(rows(1000, 10, 990, 20, 1100), 16, "cpu").decodes) == 2


def test_memory_that_does_not_align_is_refused():
    memory = memoryview(bytearray(4096))
    with pytest.raises(ValueError, match="do not align"):
        HostPages(memory, 2, 512, 4, PageShape(1, 1, 1, 4, torch.float32))
