"""Pages between memory and NIXL: a batch is cut into a few transfers that are in flight at once.

NIXL answers for a whole transfer. So where one failed, its pages are moved again one by one, once each: a bad page
does not take its neighbours along, and nothing is tried for ever.

A transfer's memory may be used again when NIXL says that it is done or has failed, not a moment earlier: NIXL lets go
of a handle whose I/O is still under way, and that I/O goes on. So nothing here releases one before its end.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from stepwell_nixl.client import Agent, Handle, Rows

Op = Literal["READ", "WRITE"]
Which = npt.NDArray[np.intp]

JOINED = 1 << 19
"""Most bytes of neighbours that become one descriptor: fewer, larger I/Os; beyond it nothing is gained."""
PAUSE_S = 20e-6
"""Between two looks at what is in flight. The kernel makes about 75 us of it."""
LONGEST_S = 250e-6
PENDING = 2048
"""Most descriptors in flight for one batch; the backends have tables of a fixed size."""


class Mover:
    """Moves pages through one agent. For one thread at a time."""

    def __init__(self, agent: Agent, memory: str, errors: tuple[type[Exception], ...]) -> None:
        """`memory` is the kind of the far side, as NIXL names it."""
        self._agent, self._memory, self._errors = agent, memory, errors

    def move(self, op: Op, near: Rows, far: Rows, cuts: int, peer: str = "") -> npt.NDArray[np.bool_]:
        """Move row by row; which rows were moved whole."""
        moved = np.zeros(len(near), dtype=bool)
        for at in range(0, len(near), PENDING):
            part = slice(at, at + PENDING)
            moved[part] = self._move(op, near[part], far[part], cuts, peer)
        return moved

    def _move(self, op: Op, near: Rows, far: Rows, cuts: int, peer: str) -> npt.NDArray[np.bool_]:
        moved = np.ones(len(near), dtype=bool)
        starts = joined(near, far)
        merge = len(starts) < len(near)
        failed = self._fly(op, near, far, cut(starts, len(near), cuts), peer, merge)
        again = [np.array([row]) for some in failed if len(some) > 1 for row in some]
        lost = [some for some in failed if len(some) == 1]
        for some in [*lost, *self._fly(op, near, far, again, peer, False)]:
            moved[some] = False
        return moved

    def _fly(self, op: Op, near: Rows, far: Rows, parts: Sequence[Which], peer: str, merge: bool) -> list[Which]:
        """One transfer a part, all at once; the parts that failed."""
        failed: list[Which] = []
        flying: list[tuple[Handle, Which]] = []
        for part in parts:
            handle = self._start(op, near[part], far[part], peer, merge)
            if handle is None:
                failed.append(part)
            else:
                flying.append((handle, part))
        return failed + self._land(flying)

    def _start(self, op: Op, near: Rows, far: Rows, peer: str, merge: bool) -> Handle | None:
        agent = self._agent
        if merge:
            starts = joined(near, far)
            near, far = merged(near, starts), merged(far, starts)
        handle = None
        try:
            near_descs, far_descs = agent.get_xfer_descs(near, "DRAM"), agent.get_xfer_descs(far, self._memory)
            handle = agent.initialize_xfer(op, near_descs, far_descs, peer or agent.name)
            agent.transfer(handle)
            return handle
        except self._errors:
            if handle is not None:
                self._release(handle)
            return None

    def _land(self, flying: list[tuple[Handle, Which]]) -> list[Which]:
        """Wait until every transfer has ended; the parts of those that failed."""
        failed: list[Which] = []
        pause = PAUSE_S
        while flying:
            left = []
            for handle, part in flying:
                try:
                    if self._agent.check_xfer_state(handle) == "PROC":
                        left.append((handle, part))
                        continue
                except self._errors:
                    failed.append(part)
                self._release(handle)
            if len(left) == len(flying):
                time.sleep(pause)
                pause = min(pause * 1.02, LONGEST_S)
            flying = left
        return failed

    def _release(self, handle: Handle) -> None:
        try:
            self._agent.release_xfer_handle(handle)
        except self._errors:  # it stays with the agent, and ends with it
            return


def joined(near: Rows, far: Rows) -> Which:
    """First rows of runs that lie next to each other on both sides, none longer than JOINED."""
    if len(near) < 2 or near[0, 1] * 2 > JOINED:
        return np.arange(len(near), dtype=np.intp)
    touching = (
        (near[:-1, 0] + near[:-1, 1] == near[1:, 0])
        & (far[:-1, 0] + far[:-1, 1] == far[1:, 0])
        & (far[:-1, 2] == far[1:, 2])
    )
    size = max(1, int(near[0, 1]))
    most = max(1, JOINED // size)
    breaks = np.flatnonzero(~touching) + 1
    edges = np.concatenate(([0], breaks, [len(near)]))
    if len(edges) == len(near) + 1 or most == 1:
        return np.arange(len(near), dtype=np.intp)
    since = np.arange(len(near)) - np.repeat(edges[:-1], np.diff(edges))
    return np.flatnonzero(since % most == 0)


def merged(rows: Rows, starts: Which) -> Rows:
    """One row a run."""
    if len(starts) == len(rows):
        return rows
    out = rows[starts]
    out[:, 1] = np.add.reduceat(rows[:, 1], starts)
    return out


def cut(starts: Which, rows: int, cuts: int) -> list[Which]:
    """Rows in up to `cuts` parts with about equally many runs each; a run is never cut."""
    if not rows:
        return []
    first = starts[np.arange(min(cuts, len(starts))) * len(starts) // min(cuts, len(starts))]
    return np.split(np.arange(rows), first[1:])


def rows(addresses: npt.ArrayLike, size: int, device: npt.ArrayLike = 0) -> Rows:
    """Descriptors of pages of one size."""
    at = np.asarray(addresses)
    made = np.empty((len(at), 3), dtype=np.uint64)
    made[:, 0], made[:, 1], made[:, 2] = at, size, device
    return made
