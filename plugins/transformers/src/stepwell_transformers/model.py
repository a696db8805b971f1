"""A decoder of the transformers library whose attention reads and writes our pages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoConfig

from stepwell import ConfigError
from stepwell_kernels import PageShape
from stepwell_kernels.collective import Group, Solo
from stepwell_transformers import paging as paged
from stepwell_transformers import sight
from stepwell_transformers.apart import Report, silent
from stepwell_transformers.experts import Told
from stepwell_transformers.fuse import Fused, How, fuse
from stepwell_transformers.geometry import Geometry, geometry
from stepwell_transformers.latent import absorb
from stepwell_transformers.load import Source, line
from stepwell_transformers.paging import Paging
from stepwell_transformers.refuse import refuse
from stepwell_transformers.seats import counting, tell_positions
from stepwell_transformers.spread import Plan, install, plan

if TYPE_CHECKING:
    from stepwell_transformers.cuda.library import Library
    from stepwell_transformers.experts.asked import Asked
    from stepwell_transformers.experts.experts import Experts

SOLO = Solo()
ALONE = Told()


class PagedModel:
    """Weights and geometry of a model, and its forward over a ragged batch."""

    def __init__(
        self,
        folder: Path,
        name: str,
        dtype: torch.dtype | None,
        device: torch.device,
        how: How = "off",
        report: Report = silent,
        group: Group = SOLO,
        experts: Asked | None = None,
    ) -> None:
        """Raises ConfigError for a model that cannot be loaded, or has a part that is not run."""
        try:
            config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        except Exception as error:  # that library raises whatever its parts raise
            raise ConfigError(f"runner.model: the config in {folder} cannot be read ({line(error)})") from error
        refuse(config, name)
        shape = geometry(config, name)
        self.spread: Plan | None = None
        """What of it is elsewhere, where it has more than one rank."""
        source = Source(folder, config, name, dtype, paged.NAME)
        if group.size == 1:
            self.model: Any = source.load(device)
            if experts is not None:
                install(self.model, Plan(1, {}, experts.cuts(self.model), frozenset(), frozenset()), group)
        else:
            self.model, self.spread = source.load_part(
                device, group, partial(plan_or_refuse, shape, group.size, name, experts=experts), report
            )
            shape = shape.of_rank(group.size, self.spread.whole)
        self.group = group
        self.device = device
        self.dtype: torch.dtype = self.model.dtype
        self._geometry: Geometry = shape
        self.layers = shape.layers
        self.seats = shape.seats
        self.groups = shape.groups(self.dtype.itemsize)
        self.context = int(config.max_position_embeddings)
        self.vocab = int(config.vocab_size)
        self.counting = counting(self.model)
        """Modules that count positions by themselves."""
        for module in self.counting:
            tell_positions(module)
        absorb(self.model, name, paged.NAME)
        self.experts = spread_out(self.model, experts, group)
        """Where they are dispatched."""
        self.fused = fuse(self.model, how, report, group)
        if self.experts is not None:
            self.experts.overlap_shared()
        self.library: Library | None = None
        """What does its attention, where that is not ours."""

    def shapes(self, page_size: int) -> list[PageShape]:
        """Of a page of each group."""
        return self._geometry.pages(page_size, self.dtype)

    def forward(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        paging: Paging,
        rows: torch.Tensor,
        told: Told = ALONE,
    ) -> torch.Tensor:
        """Compute a flat batch; answer the logits [len(rows), vocab] of the tokens at `rows`."""
        with nullcontext() if self.experts is None else self.experts.running(told, len(tokens)):
            out = self.model(
                input_ids=tokens[None],
                position_ids=positions[None],
                use_cache=False,
                logits_to_keep=rows,
                paging=paging,
            )
        logits: torch.Tensor = out.logits[0]
        return logits

    def drop(self) -> None:
        """Let go of the weights; nothing is computed any more."""
        if self.experts is not None:
            self.experts.close()
        self.experts = None
        self.model, self.counting, self.fused, self.library = None, [], Fused(), None

    def by_itself(self) -> AbstractContextManager[Any]:
        """The model with an attention of its own library: the one that every model has, sinks and caps included."""
        return self._with("eager")

    def sights(self) -> dict[int, object]:
        """What each layer sees, as its library has it."""
        with self._with(sight.NAME) as model:
            return sight.sights(model, self.device)

    @contextmanager
    def _with(self, attention: str) -> Iterator[Any]:
        self.model.set_attn_implementation(attention)
        try:
            with self.fused.own(), nullcontext() if self.experts is None else self.experts.own():
                yield self.model
        finally:
            self.model.set_attn_implementation(paged.NAME)


def spread_out(model: Any, asked: Asked | None, group: Group) -> Experts | None:
    """The experts of a model that was cut so. Meets the other ranks."""
    if asked is None:
        return None
    from stepwell_transformers.experts.experts import Experts

    return Experts(model, asked, group)


def plan_or_refuse(shape: Geometry, size: int, name: str, model: Any, experts: Asked | None = None) -> Plan:
    """What of a model `size` ranks have apart. ConfigError where that is nothing that matters."""
    apart = None if experts is None else experts.cuts(model)

    def of(ranks: int) -> Plan:
        return plan(model, ranks, shape.shape.layers, [group.layers for group in shape.shape.groups()], apart)

    found = of(size)
    if not found.cuts_layers:
        why = next(iter(found.left), "its library has no plan for it")
        others = [str(ranks) for ranks in (1, 2, 4, 8) if ranks == 1 or of(ranks).cuts_layers]
        raise ConfigError(
            f"ranks.tp: no layer of {name} can be split over {size} ranks ({why}): set ranks.tp = {' or '.join(others)}"
        )
    return found
