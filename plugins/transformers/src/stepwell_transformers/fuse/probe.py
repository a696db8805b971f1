"""One forward of random tokens by a model's own code, remembered: who calls whom, and what is asked of attention.

Nothing is known of a model by its name. What a module does is read off this forward, and every fused twin of it is
compared with it (`agree`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from stepwell import Full, Window
from stepwell.types import Need
from stepwell_kernels.paged.place import Place, Tables
from stepwell_transformers.paging import FOREIGN, Paging

NAME = "stepwell_probe"
TOKENS = 8
"""Of a probe: their positions are spread over the model's context, so that what depends on position shows."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What a layer asked of its attention."""

    layer: int
    query: torch.Tensor
    """[tokens, heads, dim], as all three."""
    keys: torch.Tensor
    values: torch.Tensor
    scale: float
    sinks: torch.Tensor | None
    softcap: float | None
    window: int | None = None
    """Its sliding_window, itself included."""
    foreign: tuple[str, ...] = ()
    """Asked beside these, and not done by paged attention."""

    @property
    def need(self) -> Need:
        """What its window keeps."""
        return Full() if self.window is None else Window(self.window - 1)


class Probe(Paging):
    """Answers attention with noise, the same for the same shape, and remembers what was asked."""

    def __init__(self, positions: torch.Tensor) -> None:
        self.positions = positions
        self.expected: Ask | None = None
        """What a module's own code asked, while its twin is tried: it has pages for such K and V to write."""
        self._needs: dict[int, Need] = {}
        self.asks: list[tuple[nn.Module | None, Ask]] = []
        self._written: tuple[torch.Tensor, torch.Tensor] | None = None
        self._place: Place | None = None

    def asked(self, module: nn.Module | None, ask: Ask) -> torch.Tensor:
        """Remember; answers noise [tokens, heads, value_dim]."""
        self.asks.append((module, ask))
        if module is not None:
            self._needs[ask.layer] = ask.need
        heads, dim = ask.query.shape[1], ask.values.shape[2]
        return _noise((len(ask.query), heads, dim), ask.query)

    def last(self) -> Ask | None:
        """What was asked last; forgotten here."""
        found = self.asks[-1][1] if self.asks else None
        self.asks.clear()
        return found

    def need(self, layer: int) -> Need:
        return self._needs.get(layer, Full())

    def ready(self, layer: int) -> None:
        self._written = self._place = None

    def place(self, layer: int) -> Place | None:
        """Pages of noise for just these tokens: whoever writes must write all."""
        if self.expected is None:
            return None
        self._place = _place(self.expected)
        return self._place

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        self._written = keys.clone(), values.clone()

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        scale: float,
        sinks: torch.Tensor | None = None,
        softcap: float | None = None,
    ) -> torch.Tensor:
        if self._written is None and self._place is not None:
            count = len(self._place.positions)
            self._written = self._place.keys.flatten(0, 1)[:count], self._place.values.flatten(0, 1)[:count]
        assert self._written is not None
        return self.asked(None, Ask(layer, query, *self._written, scale, sinks, softcap))


def _noise(shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(like.device, like.dtype)


def _place(ask: Ask, page_size: int = 4) -> Place:
    device, count = ask.keys.device, len(ask.keys)
    pages = -(-count // page_size)
    table = torch.stack([torch.arange(pages), torch.full((pages,), -1)]).to(device, torch.int32)
    keys, values = (_noise((pages, page_size, *side.shape[1:]), side) for side in (ask.keys, ask.values))
    slots = torch.zeros(count, dtype=torch.int32, device=device)
    return Place(keys, values, Tables(table, page_size), slots, torch.arange(count, device=device))


def _ask(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    s_aux: torch.Tensor | None = None,
    softcap: float | None = None,
    *,
    paging: Probe,
    **more: object,
) -> tuple[torch.Tensor, None]:
    """The attention of a model's own code during a probe."""
    layer = module.layer_idx
    assert isinstance(layer, int)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    q, k, v = (part[0].transpose(0, 1) for part in (query, key, value))
    foreign = tuple(name for name in FOREIGN if more.get(name) is not None)
    ask = Ask(layer, q, k, v, scale, s_aux, softcap, sliding_window, foreign)
    return paging.asked(module, ask)[None], None


def _no_mask(*_: object, **__: object) -> None:
    """There is none in attention through pages either."""


AttentionInterface.register(NAME, _ask)
AttentionMaskInterface.register(NAME, _no_mask)


@contextmanager
def probing(model: Any) -> Iterator[None]:
    """The attention of a model's own code answered by the probe that goes through it."""
    before = model.config._attn_implementation
    model.set_attn_implementation(NAME)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


@dataclass(frozen=True, slots=True)
class Called:
    """The first call of a module."""

    args: tuple[Any, ...]
    more: Mapping[str, Any]
    answer: Any


@dataclass(frozen=True, slots=True)
class Trace:
    """One forward, module by module."""

    calls: dict[nn.Module, Called] = field(default_factory=dict)
    """In the order in which they ended."""
    asks: dict[nn.Module, Ask] = field(default_factory=dict)
    """By the modules that asked."""


def trace(model: Any, probe: Probe) -> Trace:
    """One forward of random tokens by the model's own code. Raises whatever that does."""
    found = Trace()

    def ended(module: nn.Module, args: tuple[Any, ...], more: dict[str, Any], answer: Any) -> None:
        found.calls.setdefault(module, Called(args, more, answer))

    hooks = [module.register_forward_hook(ended, with_kwargs=True) for module in model.modules()]
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, int(model.config.vocab_size), (1, len(probe.positions)), generator=generator)
    try:
        with torch.inference_mode():
            forward(model, probe, tokens)
    finally:
        for hook in hooks:
            hook.remove()
    found.asks.update((module, ask) for module, ask in reversed(probe.asks) if module is not None)
    probe.asks.clear()
    return found


def forward(model: Any, probe: Probe, tokens: torch.Tensor) -> None:
    """Through pages that are the probe's."""
    device = probe.positions.device
    model(input_ids=tokens.to(device), position_ids=probe.positions[None], use_cache=False, paging=probe)


def positions(context: int, device: torch.device) -> torch.Tensor:
    """Spread over a model's context, near and far, in no order."""
    near = [3, 0, 1, 17]
    far = [context - 1, context // 2 + 1, context // 3, context // 7]
    return torch.tensor([min(place, context - 1) for place in [*near, *far]][:TOKENS], device=device)
