"""A model, its pools and the slots' state: from a step's rows to logits, eagerly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from stepwell_kernels import PagePool
from stepwell_kernels.paged import Step, StepBuffers
from stepwell_transformers.cuda.library import MakeTurn, Turn
from stepwell_transformers.cuda.lineup import Lineup
from stepwell_transformers.cuda.state import SlotState
from stepwell_transformers.drawing.upload import upload
from stepwell_transformers.experts import Told
from stepwell_transformers.model import PagedModel
from stepwell_transformers.paging import Paging

Ready = Callable[[int], None]
MakePaging = Callable[[Step, Ready], Paging]


@dataclass(frozen=True, slots=True)
class Computed:
    """What a step left on the device; of a graph's, the next replay of any graph may write over it."""

    logits: torch.Tensor
    """[rows, vocab]: after each row's last token, padding included."""
    step: Step
    tokens: torch.Tensor | None = None
    """The most likely ones, where they are already what the rows' next steps find."""

    @property
    def slots(self) -> torch.Tensor:
        """int32 [rows]."""
        return self.step.slots

    def place(self, row: int, decodes: int) -> int:
        """Where a row of a line-up with so many decodes is."""
        return row if row < decodes else row - decodes + self.step.shape.decodes


class Compute:
    """Everything is enqueued on the current stream; nothing waits."""

    def __init__(
        self, model: PagedModel, state: SlotState, paging: MakePaging, rows: int, turn: MakeTurn = lambda graph: None
    ) -> None:
        """`rows`: the most of a step; `turn`: what a library does of steps."""
        self.model, self.state, self.turn = model, state, turn
        self._turn = turn(None)
        self._paging, self._rows = paging, rows
        self._buffers = self._new_buffers(rows)
        self._room = rows

    def twin(self) -> Compute:
        """Another of the same, for steps that are computed in turn with this one's."""
        return Compute(self.model, self.state, self._paging, self._rows, self.turn)

    def run(self, lineup: Lineup, ready: Ready) -> Computed:
        """Enqueue a step, operation by operation."""
        return self.prepare(lineup, ready)(None)

    def prepare(self, lineup: Lineup, ready: Ready) -> Callable[[Told | None], Computed]:
        """Send up what a step is; what enqueues its forward."""
        tokens = lineup.decodes + len(lineup.tokens)
        if tokens > self._room:  # steps that are under way read the old ones: memory is reused in a stream's order
            self._room = max(tokens, 2 * self._room)
            self._buffers = self._new_buffers(self._room)
        step = self._buffers.step(self._buffers.fill(lineup.triples, len(lineup.rows), tokens))
        ids = self.state.last.index_select(0, step.slots[: lineup.decodes])
        if len(lineup.tokens):
            ids = torch.cat([ids, *upload(ids.device, lineup.tokens)])
        if self._turn is not None:
            self._turn.plan(lineup.triples)
        return lambda told: Computed(self.forward(ids, step, ready, self._turn, told), step)

    def warm(self, tokens: int) -> None:
        """Compile what a prompt of so many tokens needs; it is nobody's, so that nothing is read or written."""
        buffers = self._new_buffers(tokens)
        step = buffers.step(buffers.fill([(self.state.idle, 0, 0)], 1, tokens))
        self.forward(torch.zeros(tokens, dtype=torch.int32, device=self.model.device), step, lambda layer: None)

    def forward(
        self, ids: torch.Tensor, step: Step, ready: Ready, turn: Turn | None = None, told: Told | None = None
    ) -> torch.Tensor:
        """The model over a step's tokens; of a turn its rows are planned. `told`: None for one that is alone."""
        paging, told = self._paging(step, ready), told or Told(bool(step.shape.prompts))
        if self.model.experts is not None:
            told = replace(told, real=self._real(step))
        return self.model.forward(ids, step.positions, turn.over(paging) if turn else paging, step.last, told)

    def _real(self, step: Step) -> torch.Tensor:
        """Which tokens are no padding."""
        return step.token_slots != self.state.idle

    def _new_buffers(self, tokens: int) -> StepBuffers:
        return StepBuffers(self.model.device, self._rows, tokens, self.state.idle)


def paging_on_cuda(model: PagedModel, pools: Sequence[PagePool], state: SlotState, rows: int) -> MakePaging:
    """Attention by the kernels for CUDA."""
    from stepwell_transformers.cuda.paging import CudaPaging, Scratches, layers_of, tables_of

    scratches = Scratches(model.device, rows)
    groups = [
        (pool, tables_of(group, pages, pool.shape.page_size), group.need)
        for group, pool, pages in zip(model.groups, pools, state.tables, strict=True)
    ]
    layers = layers_of(groups, model.seats)
    return lambda step, ready: CudaPaging(layers, step, scratches, ready)
