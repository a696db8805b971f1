"""Attention straight from pages of latents, whose values are a part of their keys, against the plain reference."""

import numpy as np
import pytest
import torch

from stepwell_kernels import Batch, PagePool, PageShape, RaggedRow, paged_attention, write_pages
from stepwell_kernels.paged import StepBuffers, Tables

pytest.importorskip("triton")
from stepwell_kernels.paged.attend import attend_step
from stepwell_kernels.paged.decode import Scratch
from stepwell_kernels.paged.sides import Sides
from stepwell_kernels.paged.write import write_kv

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
DTYPE = torch.bfloat16 if CUDA else torch.float32
SIZES = {"small": (24, 8), "uneven": (40, 12), "deepseek": (512, 64)}


def together(keys, latent, query, rows, page_size, window=None):
    """The same by the plain way, from K and V that are two tensors."""
    values = keys[..., :latent].contiguous()
    batch = Batch(rows, page_size, DEVICE, window=window)
    return paged_attention(query, keys, values, batch, 0.11)


@pytest.mark.parametrize("size", sorted(SIZES))
@pytest.mark.parametrize("heads", [4, 128])
@pytest.mark.parametrize("rows", [[(0, 1), (300, 1), (17, 1)], [(33, 1), (0, 21), (40, 9)]], ids=["decode", "mixed"])
def test_latents_are_asked_as_the_reference_asks_them(size, heads, rows):
    if heads == 128 and size != "uneven" and not CUDA:
        pytest.skip("slow in the interpreter")
    latent, turned = SIZES[size]
    torch.manual_seed(heads)
    needs = [-(-(start + count) // 8) for start, count in rows]
    pool = PagePool(PageShape(1, 8, 1, latent + turned, DTYPE, 0, latent), sum(needs) + 2, DEVICE)
    ids = np.random.default_rng(1).permutation(sum(needs) + 2).astype(np.int32)
    table = np.full((len(rows) + 1, max(needs)), -1, np.int32)
    for slot, need in enumerate(needs):
        table[slot, :need], ids = ids[:need], ids[need:]
    pool.keys(0)[:] = torch.nan  # whatever no token has written must not be read
    ragged = [RaggedRow(start, count, table[slot]) for slot, (start, count) in enumerate(rows)]
    for slot, (start, _) in enumerate(rows):
        if start:
            own = torch.randn(start, 1, latent + turned, dtype=DTYPE, device=DEVICE)
            write_pages(pool.keys(0), own, Batch([RaggedRow(0, start, table[slot])], 8, DEVICE))
    tables = Tables(torch.from_numpy(table).to(DEVICE), 8)
    tokens = sum(count for _, count in rows)
    buffers = StepBuffers(DEVICE, len(rows) + 1, tokens + 2, tables.idle)
    step = buffers.step(buffers.fill([(slot, *row) for slot, row in enumerate(rows)], len(rows) + 1, tokens + 2))
    real = (step.token_slots != tables.idle).nonzero()[:, 0]
    keys = torch.randn(step.shape.tokens, 1, latent + turned, dtype=DTYPE, device=DEVICE)
    before = pool.keys(0).clone()
    write_kv(keys, keys[..., :latent], pool.keys(0), pool.values(0), tables, step.token_slots, step.positions)
    write_pages(before, keys[real], Batch(ragged, 8, DEVICE))
    assert torch.equal(torch.nan_to_num(pool.keys(0)), torch.nan_to_num(before))

    query = torch.randn(step.shape.tokens, heads, latent + turned, dtype=DTYPE, device=DEVICE)
    scratch = Scratch(DEVICE, step.shape.rows, heads, 1, latent)
    want = together(torch.nan_to_num(before).float(), latent, query[real].float(), ragged, 8)
    for _ in range(2):
        got = attend_step(query, pool.keys(0), pool.values(0), tables, step, scratch, 0.11)
        assert got.shape == (step.shape.tokens, heads, latent)
        error = (got[real].float() - want).norm(dim=-1) / want.norm(dim=-1)
        assert error.max() < (2e-2 if CUDA else 1e-5)
    assert not scratch.arrived.any()


@pytest.mark.parametrize("rows", [[(37, 1), (8, 1)], [(0, 19)], [(5, 11), (2, 1)]])
def test_the_plain_way_reads_values_out_of_keys(rows):
    torch.manual_seed(2)
    pool = PagePool(PageShape(1, 4, 1, 32, torch.float32, 0, 24), 40, "cpu")
    pool.keys(0)[:] = torch.randn_like(pool.keys(0))
    ids = iter(np.random.default_rng(0).permutation(40).astype(np.int32))
    ragged = [
        RaggedRow(start, count, np.array([next(ids) for _ in range(-(-(start + count) // 4))], np.int32))
        for start, count in rows
    ]
    query = torch.randn(sum(count for _, count in rows), 6, 32)
    keys, values = pool.keys(0), pool.values(0)
    assert values.data_ptr() == keys.data_ptr()
    batch = Batch(ragged, 4, "cpu")
    own = values.contiguous()
    for softcap in (None, 2.0):
        want = paged_attention(query, keys, own, batch, 0.2, softcap=softcap)
        torch.testing.assert_close(paged_attention(query, keys, values, batch, 0.2, softcap=softcap), want)
    assert pool.shape.token_bytes == 32 * 4, "pages hold no V"


def test_blocks_of_heads_share_the_one_key():
    keys = torch.zeros(2, 4, 1, 576)
    for heads, blocks, group in ((16, 1, 16), (128, 2, 64), (96, 2, 48), (1, 1, 1)):
        sides = Sides.of(keys, keys[..., :512], heads)
        assert (sides.latent, sides.blocks, sides.group) == (True, blocks, group)
    wide = torch.zeros(2, 4, 2, 576)
    with pytest.raises(ValueError, match="one head that all share, not of 2"):
        Sides.of(wide, wide[..., :512], 8)
