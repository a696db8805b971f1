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


def reference(query, k, v, start, window, scale):
    """One row, one query at a time, in float64."""
    groups = query.shape[1] // k.shape[1]
    out = torch.empty_like(query, dtype=torch.float64)
    for i in range(query.shape[0]):
        low = 0 if window is None else max(0, start + i - window)
        span = slice(low, start + i + 1)
        for head in range(query.shape[1]):
            scores = (k[span, head // groups].double() @ query[i, head].double()) * scale
            out[i, head] = torch.softmax(scores, 0) @ v[span, head // groups].double()
    return out


def scattered(lengths, page_size, generator):
    need = [-(-n // page_size) for n in lengths]
    ids = torch.randperm(sum(need) + 3, generator=generator).numpy().astype(np.int32)
    cuts = np.cumsum([0, *need])
    return [ids[a:b] for a, b in itertools.pairwise(cuts)], sum(need) + 3


def without(table, start, window, page_size):
    """A table from which the pages that a window has left behind are gone."""
    table = table.copy()
    if window is not None:
        table[: max(0, start - window) // page_size] = -1
    return table


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=40, deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(0, 70), st.integers(1, 40)), min_size=1, max_size=6),
    page_size=st.sampled_from([1, 4, 16]),
    window=st.sampled_from([None, 1, 5, 30]),
    block=st.sampled_from([1, 7, 1024]),
    seed=st.integers(0, 2**16),
)
def test_paged_attention_equals_the_reference(device, rows, page_size, window, block, seed):
    generator = torch.Generator().manual_seed(seed)
    tables, pages = scattered([start + count for start, count in rows], page_size, generator)
    pool = PagePool(PageShape(1, page_size, 2, 8, torch.float32), pages, device)
    pool.data.normal_()
    full = [[torch.randn(start + count, 2, 8, generator=generator) for _ in "kv"] for start, count in rows]
    for (start, _), table, (k, v) in zip(rows, tables, full, strict=True):
        if start:
            old = Batch([RaggedRow(0, start, table)], page_size, device)
            write_pages(pool.keys(0), k[:start].to(device), old)
            write_pages(pool.values(0), v[:start].to(device), old)
    batch = Batch(
        [RaggedRow(s, c, without(t, s, window, page_size)) for (s, c), t in zip(rows, tables, strict=True)],
        page_size,
        device,
        window,
        block,
    )
    query = torch.randn(batch.tokens, 6, 8, generator=generator)
    for side, pages_of in ((0, pool.keys(0)), (1, pool.values(0))):
        write_pages(pages_of, torch.cat([f[side][s:] for f, (s, _) in zip(full, rows, strict=True)]).to(device), batch)
    got = paged_attention(query.to(device), pool.keys(0), pool.values(0), batch, 0.3).cpu()
    at = 0
    for (start, count), (k, v) in zip(rows, full, strict=True):
        want = reference(query[at : at + count], k, v, start, window, 0.3)
        torch.testing.assert_close(got[at : at + count].double(), want, atol=1e-5, rtol=1e-4)
        at += count


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("page_size", [1, 16])
def test_save_then_load_brings_every_byte_back_and_touches_nothing_else(device, dtype, page_size):
    shape = PageShape(3, page_size, 2, 8, dtype)
    pool = PagePool(shape, 7, device)
    pool.data.copy_(torch.randn(pool.data.shape))
    stride, offset, slots = 4096 * (1 + shape.page_bytes // 4096), 8192, 5
    memory = memoryview(mmap.mmap(-1, offset + slots * stride))
    memory[:] = b"\xa5" * len(memory)
    host = HostPages(memory, offset, stride, slots, shape)
    source = pool.data.clone()
    device_ids, host_ids = torch.tensor([5, 0, 3], device=device), torch.tensor([4, 1, 2])
    save(pool, host, device_ids, host_ids)

    untouched = [memory[offset + s * stride : offset + (s + 1) * stride] for s in (0, 3)]
    untouched += [memory[offset + s * stride + shape.page_bytes : offset + (s + 1) * stride] for s in (1, 2, 4)]
    assert all(bytes(part) == b"\xa5" * len(part) for part in untouched)

    pool.data.fill_(7)
    targets = torch.tensor([2, 6, 1], device=device)
    for layer in range(shape.layers):
        load_layer(pool, host, layer, targets, host_ids)
    assert torch.equal(pool.data[:, :, targets], source[:, :, device_ids])
    rest = [0, 3, 4, 5]
    assert bool((pool.data[:, :, rest] == 7).all())
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
