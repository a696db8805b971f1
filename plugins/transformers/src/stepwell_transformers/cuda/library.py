"""Attention by another library: planned on the host before a step's layers run, then run by each of them.

What layers ask is known once they have asked, so a first step plans as they come; from then on plans are made ahead,
as a graph needs them. Layers that the library cannot do keep the attention that the step would have without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from stepwell import AttentionLayers, AttentionRun, Capability, ConfigError, Context, PagedAttention, Part
from stepwell.types import Need
from stepwell_kernels import PagePool
from stepwell_kernels.paged import Place, StepShape
from stepwell_transformers.cuda.state import SlotState
from stepwell_transformers.model import PagedModel
from stepwell_transformers.paging import Paging

Triple = tuple[int, int, int]
"""Slot, start and count of a row."""


class Library:
    """What a plugin offers, and what became of each kind of layers."""

    def __init__(self, part: Part[PagedAttention[torch.Tensor]], context: Context) -> None:
        """ConfigError where it cannot be had."""
        self.name = part.offer.name
        self.graphs = Capability.GRAPH_SAFE in part.provides
        self._log = context.log
        self._answers: dict[AttentionLayers, str | None] = {}
        self._said: set[tuple[str, Need]] = set()
        with self.blamed():
            self.attention = part.make(context)

    def does(self, layers: AttentionLayers) -> bool:
        """Whether it takes them; said once where it does not."""
        if layers not in self._answers:
            with self.blamed():
                self._answers[layers] = self.attention.lacks(layers)
        why = self._answers[layers]
        if why is not None and (why, layers.need) not in self._said:
            self._said.add((why, layers.need))
            self._log.warning("%s does not do %s: layers with %s keep Triton's kernels", self.name, why, layers.need)
        return why is None

    @contextmanager
    def blamed(self) -> Iterator[None]:
        """What fails within is the library's: one sentence that says what to do. What does not fit is no fault."""
        try:
            yield
        except (ConfigError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            said = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise ConfigError(
                f"runner.attention: {self.name!r} does not work here ({type(error).__name__}: {said}); use 'triton'"
            ) from error

    def close(self) -> None:
        """Give back what it holds."""
        self.attention.close()


MakeTurn = Callable[[StepShape | None], "Turn | None"]
"""For steps of a graph, or those of none."""


@dataclass(slots=True)
class _Planned:
    """Runs of one kind of layers; `fresh`: planned for the step that is coming."""

    decodes: AttentionRun[torch.Tensor] | None = None
    prompts: AttentionRun[torch.Tensor] | None = None
    fresh: bool = False


class Turn:
    """Attention of the steps of one captured shape, or of all that are not captured; one step at a time."""

    def __init__(
        self,
        library: Library,
        model: PagedModel,
        pools: Sequence[PagePool],
        state: SlotState,
        graph: StepShape | None = None,
    ) -> None:
        self._library, self._model, self._pools, self._state, self._graph = library, model, pools, state, graph
        self._kinds: dict[tuple[int, AttentionLayers], _Planned] = {}
        self._decodes: list[Triple] = []
        self._prompts: list[Triple] = []

    def plan(self, rows: Sequence[Triple]) -> None:
        """Rows of the step that is coming, those of one token first; a graph's are padded to its shape."""
        cut = next((at for at, (_, _, count) in enumerate(rows) if count != 1), len(rows))
        nobody = (self._graph.decodes - cut) if self._graph else 0
        self._decodes = [*rows[:cut], *[(self._state.idle, 0, 1)] * nobody]
        self._prompts = list(rows[cut:])
        for kind, planned in self._kinds.items():
            planned.fresh = False
            self._plan(*kind, planned)

    def over(self, paging: Paging) -> Paging:
        """A step's attention, with the library where it does it."""
        return LibraryPaging(paging, self)

    def attend(
        self, layer: int, query: torch.Tensor, scale: float, sinks: torch.Tensor | None, softcap: float | None
    ) -> torch.Tensor | None:
        """As `Paging.attend`; None where the library does not do such layers."""
        seat = self._model.seats[layer]
        pool = self._pools[seat.group]
        keys, values = pool.keys(seat.index), pool.values(seat.index)
        need = self._model.groups[seat.group].need
        layers = _layers(query, keys, values, need, scale, softcap, sinks is not None)
        if not self._library.does(layers):
            return None
        planned = self._kinds.setdefault((seat.group, layers), _Planned())
        if not planned.fresh:
            self._plan(seat.group, layers, planned)
        out = query.new_empty((*query.shape[:2], values.shape[3]))
        cut = len(self._decodes)
        sinks = None if sinks is None else sinks.float()
        with self._library.blamed():
            if planned.decodes is not None and cut:
                planned.decodes.run(query[:cut], keys, values, out[:cut], sinks)
            if planned.prompts is not None and self._prompts:
                planned.prompts.run(query[cut:], keys, values, out[cut:], sinks)
        return out

    def _plan(self, group: int, layers: AttentionLayers, planned: _Planned) -> None:
        attention = self._library.attention
        with self._library.blamed():
            if self._decodes:
                if planned.decodes is None:
                    planned.decodes = attention.decodes(layers, self._room())
                planned.decodes.plan(self._state.seen(group, self._decodes))
            if self._prompts:
                planned.prompts = planned.prompts or attention.prompts(layers)
                planned.prompts.plan(self._state.seen(group, self._prompts))
        planned.fresh = True

    def _room(self) -> tuple[int, int] | None:
        """Rows of a graph, and the most pages that they may have."""
        return (self._graph.decodes, self._graph.decodes * self._state.width) if self._graph else None


def _layers(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    need: Need,
    scale: float,
    softcap: float | None,
    sinks: bool,
) -> AttentionLayers:
    _, page_size, kv_heads, key_dim = keys.shape
    dtype = str(keys.dtype).removeprefix("torch.")
    heads, value_dim = query.shape[1], values.shape[3]
    return AttentionLayers(heads, kv_heads, key_dim, value_dim, page_size, dtype, need, scale, softcap, sinks)


def turns(model: PagedModel, pools: Sequence[PagePool], state: SlotState) -> MakeTurn:
    """How steps have a turn: not those of graphs with prompts, nor of any where the library is not to be captured."""
    library = model.library

    def make(graph: StepShape | None) -> Turn | None:
        if library is None or (graph is not None and (graph.prompts or not library.graphs)):
            return None
        return Turn(library, model, pools, state, graph)

    return make


class LibraryPaging(Paging):
    """A step's paging, but for the attention that a library does."""

    def __init__(self, own: Paging, turn: Turn) -> None:
        self._own, self._turn = own, turn
        self.positions = own.positions

    def need(self, layer: int) -> Need:
        return self._own.need(layer)

    def ready(self, layer: int) -> None:
        self._own.ready(layer)

    def place(self, layer: int) -> Place | None:
        return self._own.place(layer)

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        self._own.write(layer, keys, values)

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        scale: float,
        sinks: torch.Tensor | None = None,
        softcap: float | None = None,
    ) -> torch.Tensor:
        found = self._turn.attend(layer, query, scale, sinks, softcap)
        return self._own.attend(layer, query, scale, sinks, softcap) if found is None else found
