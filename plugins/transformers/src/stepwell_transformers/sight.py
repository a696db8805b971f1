"""What each layer of a model sees, as its own library says it: asked of the masks it makes, not of a prompt.

A prompt long enough to leave a window of thousands of tokens would make every start slow; a mask tells the same for any
two places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableMapping
from typing import Any

import torch
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from stepwell import Full
from stepwell.types import Need

NAME = "stepwell_sight"


class Sight:
    """Which tokens a query sees, made in the place of a mask."""

    def __init__(self, mask_function: Callable[..., torch.Tensor]) -> None:
        self._mask = mask_function
        self.device = torch.device("cpu")
        """Where what a mask is made from is."""

    def between(self, places: torch.Tensor) -> torch.Tensor:
        """[places, places]: true where a query at the one sees a token at the other."""
        own = places.to(self.device)
        nought = torch.zeros((), dtype=torch.int64, device=self.device)
        seen = self._mask(nought, nought, own[:, None], own[None, :])
        return seen.expand(len(places), len(places)).to(places.device)


def _sight(*_: object, mask_function: Callable[..., torch.Tensor], **__: object) -> Sight:
    return Sight(mask_function)


def _look(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: object,
    *_: object,
    sights: MutableMapping[int, object],
    **__: object,
) -> tuple[torch.Tensor, None]:
    layer = module.layer_idx
    assert isinstance(layer, int)
    if isinstance(attention_mask, Sight):
        attention_mask.device = query.device
    sights[layer] = attention_mask
    shape = (query.shape[0], query.shape[2], query.shape[1], value.shape[3])
    return torch.zeros(shape, dtype=query.dtype, device=query.device), None


AttentionInterface.register(NAME, _look)
AttentionMaskInterface.register(NAME, _sight)


def sights(model: Any, device: torch.device) -> dict[int, object]:
    """What the masks of each layer are, from one token; a `Sight` where the library made it by the usual way."""
    found: dict[int, object] = {}
    model(input_ids=torch.zeros((1, 1), dtype=torch.int64, device=device), use_cache=False, sights=found)
    return found


def agrees(sight: object, need: Need, context: int) -> bool:
    """Whether a layer sees what its group keeps. A layer that made no mask in the usual way must keep everything."""
    if not isinstance(sight, Sight):
        return isinstance(need, Full)
    places = _places(need, context)
    own = torch.tensor(places)
    low = torch.tensor([need.lo(place) for place in places])
    want = (own[None, :] <= own[:, None]) & (own[None, :] >= low[:, None])
    return bool(torch.equal(sight.between(own), want))


def _places(need: Need, context: int) -> list[int]:
    """Places about the ends of windows and chunks, and of those that nobody has said there are."""
    powers = [1 << power for power in range(context.bit_length())]
    own = [] if isinstance(need, Full) else [need.tokens * times for times in (1, 2, 3)]
    return sorted(_near([*powers, *own, context - 1], context))


def _near(places: Iterable[int], context: int) -> set[int]:
    return {place + off for place in places for off in (-2, -1, 0, 1, 2) if 0 <= place + off < context}
