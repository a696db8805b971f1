"""Attention of ragged rows with many queries over their pages.

A tile is some successive queries of one row with all query heads that share a KV head, so that K and V are read once
for them all. The grid depends on shapes alone: tiles find their row when they run, and those that have none fill
padding with zeros. Where the tiles are too few for the device, each row's history is split, and merged by a second
launch. Tiles with the longest histories come first, so that none is left running alone.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cache

import torch
import triton

from stepwell_kernels.fused.device.pieces import processors
from stepwell_kernels.paged.place import Tables
from stepwell_kernels.paged.sides import Sides
from stepwell_kernels.paged.sight import SEES
from stepwell_kernels.paged.step import Step
from stepwell_kernels.paged.tiles import attend_tiles, merge

ROWS = 128
"""Rows whose places are read at once."""
SPLITS = 32
"""Most parts of a history."""
SPLIT = 512
"""Tokens below which a part is not worth merging."""
LOG2E = 1.4426950408889634


@dataclass(frozen=True, slots=True)
class Blocks:
    """How a kernel cuts its work."""

    queries: int
    tokens: int
    warps: int
    stages: int


def paged_prefill(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    tables: Tables,
    step: Step,
    scale: float,
    sinks: torch.Tensor | None = None,
    softcap: float | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attend from a step's prompts, `query` [tokens behind the decodes, heads, dim], to their pages.

    Padding reads nothing and gives zeros. Answers [tokens, heads, value_dim].
    """
    tokens, heads, dim = query.shape
    value_dim = values.shape[3]
    if out is None:
        out = torch.empty((tokens, heads, value_dim), dtype=query.dtype, device=query.device)
    if not tokens:
        return out
    found = Sides.of(keys, values, heads)
    kv_heads, group = found.blocks, found.group
    kind, sight = tables.sees
    hopper = _fits_hopper(query, keys, values, tables) and _streams(query.device)
    blocks = HOPPER[max(dim, value_dim)] if hopper else _blocks(max(dim, value_dim), keys.dtype, found)
    each = blocks.queries // group
    tiles = tokens // each + step.shape.prompts + 1
    reach = tables.pages.shape[1] * tables.page_size if kind == "all" else sight + each
    splits = _splits(tiles * kv_heads, reach, query.device)
    parts, sums = out, out
    if splits > 1:
        parts = torch.empty((splits, tokens, heads, value_dim), dtype=torch.float32, device=query.device)
        sums = torch.empty((splits, tokens, heads), dtype=torch.float32, device=query.device)
    numbers = (step.slots, step.starts, step.counts, step.begins)
    scores = (out if sinks is None else sinks, scale if softcap is not None else scale * LOG2E, softcap or 0.0)
    sizes = (step.shape.decodes, step.shape.prompts, tokens, sight)
    strides = (query.stride(0), query.stride(1), out.stride(0), out.stride(1), tables.pages.stride(0))
    constants = {
        "SEES": SEES[kind],
        "SINKS": sinks is not None,
        "SOFTCAP": softcap is not None,
        "SPLIT": splits > 1,
        "PAGE_SIZE": tables.page_size,
        "EACH": each,
        "BLOCK": blocks.tokens,
        "STAGES": blocks.stages,
        "ROWS": ROWS,
    }
    grid = (kv_heads, splits, tiles)
    if hopper:
        from stepwell_kernels.paged import hopper as kernels

        box = min(tables.page_size, blocks.tokens)
        sides = (kernels.boxes(keys, box), kernels.boxes(values, box))
        kernels.attend_tiles[grid](
            query, *sides, out, parts, sums, tables.pages, *numbers, *scores, *sizes, keys.shape[0] * keys.shape[1],
            *strides, **constants, KV_HEADS=kv_heads, GROUP=group, DIM=dim, VALUE_DIM=value_dim, BOX=box, num_warps=4,
        )  # fmt: skip
    else:
        attend_tiles[grid](
            query, keys, values, out, parts, sums, tables.pages, *numbers, *scores, *sizes, *strides, **constants,
            **found.constants(), QUERIES=blocks.queries, num_warps=blocks.warps,
        )  # fmt: skip
    if splits > 1:
        merge[(heads, tokens)](
            out,
            parts,
            sums,
            step.begins,
            step.counts,
            out if sinks is None else sinks,
            splits,
            tokens,
            step.shape.decodes,
            step.shape.rows - 1,
            out.stride(0),
            out.stride(1),
            SINKS=sinks is not None,
            HEADS=heads,
            VALUE_DIM=value_dim,
            VALUE_PADDED=triton.next_power_of_2(value_dim),
            SPLITS=SPLITS,
            num_warps=4,
        )
    return out


HOPPER = {64: Blocks(128, 128, 4, 2), 128: Blocks(128, 128, 4, 2), 256: Blocks(128, 64, 4, 2)}
"""By head dim. TFLOP/s on an H200, bfloat16, 32 heads of 128 over 8, pages of 16; queries over tokens of history:

    queries / history   8192 / 0   4096 / 4096   16384 / 0   512 / 8192   100 / 8192
    blocks of 128          608          622         575          509          204
    blocks of 64           524          527         518          443          199
    `tiles`                423          426         437          392          166
    cuDNN, contiguous      580
"""


@cache
def _streams(device: torch.device) -> bool:
    """Whether the device is a Hopper, and Triton compiles the kernel for one: the language it is in is young."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device)[0] != 9:
        return False
    try:
        from stepwell_kernels.paged.hopper import compile_smallest

        compile_smallest(device)
    except Exception as error:
        warnings.warn(
            f"prompts' attention takes a slower kernel: Triton {triton.__version__} cannot compile Hopper's ({error})",
            stacklevel=2,
        )
        return False
    return True


def _fits_hopper(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, tables: Tables) -> bool:
    """Whether the kernel for Hopper's own units takes these."""
    size, dims = tables.page_size, {keys.shape[3], values.shape[3]}
    return (
        query.dtype in (torch.bfloat16, torch.float16)
        and dims <= HOPPER.keys()
        and size >= 8
        and size & (size - 1) == 0
        and query.shape[1] // keys.shape[2] <= 128
    )


def _blocks(dim: int, dtype: torch.dtype, sides: Sides) -> Blocks:
    """Of `tiles`. 8192 / 0 as above: (128, 64, 8, 3) 399 TFLOP/s, (128, 128, 8, 2) 360, (64, 64, 4, 3) 328."""
    least = max(16, triton.next_power_of_2(sides.group))
    if sides.latent:
        return Blocks(least, 16, 4, 1) if dtype == torch.float32 else Blocks(max(64, least), 32, 8, 2)
    if dtype == torch.float32:
        return Blocks(max(32, least), 32 if dim <= 128 else 16, 4, 2)
    if dim <= 128:
        return Blocks(max(128, least), 64, 8, 3)
    return Blocks(max(128, least), 32, 8, 2)


def _splits(programs: int, reach: int, device: torch.device) -> int:
    """Of each history, which is at most `reach`: as many as fill the device, where the tiles alone do not."""
    free = 2 * (processors(device) if device.type == "cuda" else 16) // programs
    return max(1, min(free, SPLITS, reach // SPLIT))
