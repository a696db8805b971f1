"""The copy kernel in Triton: the same walk as pages.cu, and what the interpreter runs on CPU.

All units of 16 bytes of all pages stand in one row, in the order of the arena; a program takes tiles of them, and reads
the ids of its next tile while the loads of this one are under way.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from stepwell_kernels.copies import HostPages
from stepwell_kernels.pool import PagePool
from stepwell_kernels.transfer.layout import UNIT, layout
from stepwell_kernels.transfer.mover import Mover, Pairs, Way
from stepwell_kernels.transfer.rule import BLOCKS

WARPS = 32
UNROLL = 4
"""Loads of a thread before its first store."""
THREADS_PER_WARP = 32


@triton.jit
def _read(address, live, ASM: tl.constexpr):  # noqa: N803
    if ASM:
        return tl.inline_asm_elementwise(
            "{ .reg .pred p; setp.ne.s32 p, $5, 0; mov.u32 $0, 0; mov.u32 $1, 0; mov.u32 $2, 0; mov.u32 $3, 0;"
            " @p ld.global.L1::no_allocate.v4.u32 {$0, $1, $2, $3}, [$4]; }",
            "=&r,=&r,=&r,=&r,l,r",
            [address, live.to(tl.int32)],
            dtype=(tl.int32, tl.int32, tl.int32, tl.int32),
            is_pure=False,
            pack=1,
        )
    else:
        pointer = address.to(tl.pointer_type(tl.int32))
        return (
            tl.load(pointer, mask=live),
            tl.load(pointer + 1, mask=live),
            tl.load(pointer + 2, mask=live),
            tl.load(pointer + 3, mask=live),
        )


@triton.jit
def _write(address, live, a, b, c, d, ASM: tl.constexpr):  # noqa: N803
    if ASM:
        tl.inline_asm_elementwise(
            "{ .reg .pred p; setp.ne.s32 p, $2, 0; mov.u32 $0, 0;"
            " @p st.global.L1::no_allocate.v4.u32 [$1], {$3, $4, $5, $6}; }",
            "=&r,l,r,r,r,r,r",
            [address, live.to(tl.int32), a, b, c, d],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )
    else:
        pointer = address.to(tl.pointer_type(tl.int32))
        tl.store(pointer, a, mask=live)
        tl.store(pointer + 1, b, mask=live)
        tl.store(pointer + 2, c, mask=live)
        tl.store(pointer + 3, d, mask=live)


_NUMBERS = ("keys", "values", "keys_layer", "values_layer", "host", "slot", "apart", "pages")


@triton.jit(do_not_specialize=_NUMBERS)
def move_pages(
    keys,
    values,
    keys_layer,
    values_layer,
    host,
    slot,
    apart,
    ids,
    pages,
    key_units: tl.constexpr,
    layer_units: tl.constexpr,
    run_units: tl.constexpr,
    key_row: tl.constexpr,
    value_row: tl.constexpr,
    PARTS: tl.constexpr,  # noqa: N803
    LOAD: tl.constexpr,  # noqa: N803
    TILE: tl.constexpr,  # noqa: N803
    ASM: tl.constexpr,  # noqa: N803
):
    """Addresses and distances are in bytes, `*_units` in 16 of them; `ids` are device pages and then slots.

    `key_units` and `layer_units` are of a part, `run_units` of all parts of a page, `*_row` of a token in a part.

    The units are known at compile time, as a thread divides by them for each one that it copies.
    """
    step = tl.num_programs(0).to(tl.int64) * TILE
    begin = tl.program_id(0).to(tl.int64) * TILE
    slot = slot.to(tl.int64)
    total = pages.to(tl.int64) * run_units
    lane = tl.arange(0, TILE)

    spot = (begin % run_units).to(tl.int32) + lane
    index = (begin // run_units).to(tl.int32) + spot // run_units
    live = index < pages
    page = tl.load(ids + index, mask=live, other=0).to(tl.int64)
    place = tl.load(ids + pages + index, mask=live, other=0).to(tl.int64)
    while begin < total:
        unit = spot % run_units
        part = unit // (run_units // PARTS)
        of_part = unit % (run_units // PARTS) if PARTS > 1 else unit
        layer = of_part // layer_units
        rest = of_part % layer_units
        is_key = rest < key_units
        of_side = tl.where(is_key, rest, rest - key_units)
        piece_units = tl.where(is_key, key_units, layer_units - key_units) * PARTS
        if PARTS > 1:
            row = tl.where(is_key, key_row, value_row)
            of_side += (of_side // row * (PARTS - 1) + part) * row
        base = tl.where(is_key, keys + layer * keys_layer.to(tl.int64), values + layer * values_layer.to(tl.int64))
        mine = base + (page * piece_units + of_side) * 16
        theirs = host + place * slot + of_part.to(tl.int64) * 16
        if PARTS > 1:
            theirs += part.to(tl.int64) * apart.to(tl.int64)
        if LOAD:
            a, b, c, d = _read(theirs, live, ASM)
        else:
            a, b, c, d = _read(mine, live, ASM)

        begin += step
        spot = (begin % run_units).to(tl.int32) + lane
        index = (begin // run_units).to(tl.int32) + spot // run_units
        next_live = index < pages
        page = tl.load(ids + index, mask=next_live, other=0).to(tl.int64)
        place = tl.load(ids + pages + index, mask=next_live, other=0).to(tl.int64)

        if LOAD:
            _write(mine, live, a, b, c, d, ASM)
        else:
            _write(theirs, live, a, b, c, d, ASM)
        live = next_live


class TritonMover(Mover):
    """By the Triton kernel, on at most `blocks` programs; on CPU under the interpreter."""

    method = "triton"

    def __init__(self, pool: PagePool, host: HostPages, blocks: int | None) -> None:
        super().__init__(pool, host)
        self._blocks = blocks
        self._layout = layout(pool, host)
        self._on_gpu = pool.sides[0].device.type == "cuda"

    def blocks_of(self, way: Way) -> int:
        return self._blocks or BLOCKS[way]

    def move(self, way: Way, first: int, layers: int, pairs: Pairs) -> None:
        if not len(pairs):
            return
        keys, values = self._layout.sides[0], self._layout.sides[-1]
        tile = WARPS * THREADS_PER_WARP * UNROLL
        run = layers * self._layout.layer_bytes // UNIT
        with torch.cuda.device_of(pairs.uploaded):
            move_pages[(max(1, min(self.blocks_of(way), -(-len(pairs) * run // tile))),)](
                keys.address + first * keys.layer,
                values.address + first * values.layer,
                keys.layer,
                values.layer,
                self._layout.host + first * self._layout.part_bytes,
                self._layout.slot,
                self._layout.apart,
                pairs.uploaded,
                len(pairs),
                keys.piece // self._layout.parts // UNIT,
                self._layout.part_bytes // UNIT,
                run,
                max(1, self._layout.row(keys) // UNIT),
                max(1, self._layout.row(values) // UNIT),
                PARTS=self._layout.parts,
                LOAD=way is Way.LOAD,
                TILE=tile,
                ASM=self._on_gpu,
                num_warps=WARPS,
            )
