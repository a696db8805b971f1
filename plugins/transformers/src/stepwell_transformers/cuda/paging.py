"""Attention by the kernels that read a step's numbers from device memory when they run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from stepwell import Chunked, Full, GroupSpec, Window
from stepwell.types import Need
from stepwell_kernels import PagePool
from stepwell_kernels.paged import Place, Step, Tables
from stepwell_kernels.paged.attend import attend_step
from stepwell_kernels.paged.decode import Scratch
from stepwell_kernels.paged.write import write_kv
from stepwell_transformers.paging import Paging, Seat


class Scratches:
    """Memory that attention works in, a piece for each shape of layers; layers run one after another and share it."""

    def __init__(self, device: torch.device, rows: int) -> None:
        self._device, self._rows = device, rows
        self._pieces: dict[tuple[int, int, int], Scratch] = {}

    def of(self, heads: int, kv_heads: int, value_dim: int) -> Scratch:
        """The piece of a shape; made when it is first asked for, so before any graph that uses it is captured."""
        shape = heads, kv_heads, value_dim
        if shape not in self._pieces:
            self._pieces[shape] = Scratch(self._device, self._rows, *shape)
        return self._pieces[shape]


@dataclass(frozen=True, slots=True)
class Layer:
    """What of a layer is the same in all steps."""

    keys: torch.Tensor
    values: torch.Tensor
    tables: Tables
    need: Need


def layers_of(groups: Sequence[tuple[PagePool, Tables, Need]], seats: Mapping[int, Seat]) -> dict[int, Layer]:
    """By number, with the pages, the tables and the need of its group."""
    found = {}
    for number, seat in seats.items():
        pool, tables, need = groups[seat.group]
        found[number] = Layer(pool.keys(seat.index), pool.values(seat.index), tables, need)
    return found


class CudaPaging(Paging):
    """One step's."""

    def __init__(
        self, layers: Mapping[int, Layer], step: Step, scratches: Scratches, ready: Callable[[int], None]
    ) -> None:
        self._layers, self._step, self._scratches, self._ready = layers, step, scratches, ready
        self.positions = step.positions

    def need(self, layer: int) -> Need:
        return self._layers[layer].need

    def ready(self, layer: int) -> None:
        self._ready(layer)

    def place(self, layer: int) -> Place:
        at = self._layers[layer]
        return Place(at.keys, at.values, at.tables, self._step.token_slots, self.positions)

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        at = self._layers[layer]
        write_kv(keys, values, at.keys, at.values, at.tables, self._step.token_slots, self.positions)

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        scale: float,
        sinks: torch.Tensor | None = None,
        softcap: float | None = None,
    ) -> torch.Tensor:
        at = self._layers[layer]
        scratch = self._scratches.of(query.shape[1], at.keys.shape[2], at.values.shape[3])
        return attend_step(query, at.keys, at.values, at.tables, self._step, scratch, scale, sinks, softcap)


def tables_of(group: GroupSpec, pages: torch.Tensor, page_size: int) -> Tables:
    """A group's page tables, and what its layers see of them."""
    match group.need:
        case Full():
            return Tables(pages, page_size)
        case Window(tokens):
            return Tables(pages, page_size, window=tokens)
        case Chunked(tokens):
            return Tables(pages, page_size, chunk=tokens)
