"""Which weights go where, so that a layer's slots change from one placement to the next without a wrong one in use.

What comes from another rank, and what is read from a slot that another move writes, is received into a stage first;
between two steps the stages and the remaining slots are copied into place, in an order in which none is written
before it was read, and the layer's map changes. A move between ranks therefore never touches what a step uses.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepwell import Placement

Row = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Copy:
    """One expert's weights, from a slot to another one; slots are numbered over all ranks."""

    expert: int
    source: int
    target: int
    stage: int | None
    """The place among the target rank's stages that it goes through; None: from slot to slot of one rank."""


@dataclass(frozen=True, slots=True)
class LayerMoves:
    """All moves of a layer. `copies` are in the order in which a rank puts its own into place."""

    layer: int
    copies: tuple[Copy, ...]
    next: Row
    """[slots]: the experts once they are done."""
    slots_per_rank: int

    def between(self) -> Iterator[tuple[int, int, Copy]]:
        """Source rank, target rank, move: what is sent, in the order in which both sides post it."""
        for copy in self.copies:
            source, target = copy.source // self.slots_per_rank, copy.target // self.slots_per_rank
            if source != target:
                yield source, target, copy

    def of(self, rank: int) -> tuple[Copy, ...]:
        """What a rank puts into place, in order: stages and slots into slots."""
        return tuple(copy for copy in self.copies if copy.target // self.slots_per_rank == rank)

    def staged(self, rank: int) -> tuple[Copy, ...]:
        """What a rank's stages are filled with, by sends of others or from its own slots."""
        return tuple(copy for copy in self.of(rank) if copy.stage is not None)

    @property
    def stages(self) -> int:
        """Most stages that a rank needs."""
        used = Counter(copy.target // self.slots_per_rank for copy in self.copies if copy.stage is not None)
        return max(used.values(), default=0)


def moves(current: Placement, following: Placement, ranks: int, nodes: int = 1) -> tuple[LayerMoves, ...]:
    """The layers that change, in order. An expert's replicas are read evenly, those of the target's node first.

    ValueError for placements of different shapes, and where an expert would come from nowhere.
    """
    if current.experts.shape != following.experts.shape:
        raise ValueError(f"a placement of {following.experts.shape} after one of {current.experts.shape}")
    slots_per_rank = current.experts.shape[1] // ranks
    per_node = slots_per_rank * (ranks // nodes)
    sent: Counter[int] = Counter()
    return tuple(
        _layer(layer, old, new, slots_per_rank, per_node, sent)
        for layer, (old, new) in enumerate(zip(current.experts, following.experts, strict=True))
        if (old != new).any()
    )


def batches(plan: Sequence[LayerMoves], layers: int) -> Iterator[Sequence[LayerMoves]]:
    """A few layers at a time."""
    for at in range(0, len(plan), layers):
        yield plan[at : at + layers]


def digest(current: Placement, following: Placement, plan: Sequence[LayerMoves]) -> int:
    """Below two to the 62; ranks that would do anything differently have another one."""
    found = hashlib.sha256()
    for placement in (current, following):
        found.update(repr(placement.experts.shape).encode())
        found.update(np.ascontiguousarray(placement.experts, dtype="<i4").tobytes())
    for layer in plan:
        for copy in layer.copies:
            found.update(repr((layer.layer, copy.expert, copy.source, copy.target, copy.stage)).encode())
    return int.from_bytes(found.digest()[:8], "big") >> 2


def _layer(layer: int, old: Row, new: Row, per_rank: int, per_node: int, sent: Counter[int]) -> LayerMoves:
    holders: dict[int, list[int]] = defaultdict(list)
    for slot, expert in enumerate(old.tolist()):
        holders[expert].append(slot)
    pairs = []
    for target in np.flatnonzero(old != new).tolist():
        expert = int(new[target])
        if expert not in holders:
            raise ValueError(f"layer {layer}: expert {expert} is to come and stands nowhere")
        source = _source(holders[expert], target, per_rank, per_node, sent)
        if source // per_rank != target // per_rank:
            sent[source // per_rank] += 1
        pairs.append((expert, source, target))
    copies: list[Copy] = []
    for rank in range(len(old) // per_rank):
        copies += _ordered([pair for pair in pairs if pair[2] // per_rank == rank], per_rank)
    return LayerMoves(layer, tuple(copies), new.copy(), per_rank)


def _source(holders: Sequence[int], target: int, per_rank: int, per_node: int, sent: Counter[int]) -> int:
    """Of the slots that have it: on the same rank, else on the same node, else any; whose rank sent least so far."""

    def cost(slot: int) -> tuple[bool, bool, int, int]:
        other_rank = slot // per_rank != target // per_rank
        return other_rank, slot // per_node != target // per_node, sent[slot // per_rank], slot

    return min(holders, key=cost)


def _ordered(pairs: Sequence[tuple[int, int, int]], per_rank: int) -> list[Copy]:
    """One rank's moves: a slot that others read is written after them, and where that goes in a ring, from a stage."""
    inner = {target: (expert, source) for expert, source, target in pairs if source // per_rank == target // per_rank}
    readers = Counter(source for _, source in inner.values())
    staged = [(expert, source, target) for expert, source, target in pairs if target not in inner]
    direct: list[Copy] = []
    while inner:
        free = next((target for target in inner if not readers[target]), None)
        if free is None:
            target, (expert, source) = next(iter(inner.items()))
            staged.append((expert, source, target))
        else:
            target, (expert, source) = free, inner[free]
            direct.append(Copy(expert, source, target, None))
        del inner[target]
        readers[source] -= 1
    return direct + [Copy(*pair, stage) for stage, pair in enumerate(staged)]
