"""Shared experts, computed while the tokens of routed ones are under way."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch import nn

from stepwell_transformers.experts.forward import RUNNING, Forward, Pending

NAMES = ("shared_experts", "shared_expert")
"""What blocks call them."""


class Shared:
    """Takes the place of the forward of a block's shared experts.

    A block that asks for them before its routed experts gets a tensor that is filled while those are under way, which
    it reads only afterwards; one that asks later finds what was made in the meantime. Whether a block is of either kind
    is tried out before it serves (`tried`), and one that is not computes them where it asks for them, as ever.
    """

    def __init__(self, module: nn.Module) -> None:
        self._own: Callable[[torch.Tensor], torch.Tensor] = module.forward
        self.trusted = True
        self._dims = 2
        """Of the tensor that its block hands to it."""
        self._missed = False
        """Whether what was made early was of something else than its block asked for."""
        self._empty: Callable[[torch.Tensor], torch.Tensor] = torch.empty_like
        module.forward = self

    def __call__(self, given: torch.Tensor) -> torch.Tensor:
        forward = RUNNING.get()
        if forward is None or not forward.shares or not self.trusted:
            self._dims = given.dim()
            return self._own(given)
        early = forward.shared.pop(self, None)
        if early is None:
            forward.shared[self] = Pending(given, self._empty(given))
            return forward.shared[self].answer
        if _same(early.given, given):
            return early.answer.view(given.shape)
        self._missed = True
        return self._own(given)

    def meanwhile(self, forward: Forward, tokens: torch.Tensor) -> None:
        """`tokens` are under way to routed experts."""
        if not forward.shares or not self.trusted:
            return
        waiting = forward.shared.pop(self, None)
        if waiting is None:
            given = tokens if self._dims == tokens.dim() else tokens[None]
            forward.shared[self] = Pending(given, self._own(given))
        else:
            waiting.answer.copy_(self._own(waiting.given))

    @torch.no_grad()
    def tried(self, block: nn.Module, x: torch.Tensor, running: AbstractContextManager[None]) -> bool:
        """Whether a block's answers within `running` are those without it, bit by bit.

        A tensor that is read before it is filled shows: it is no number then.
        """
        self._empty = lambda like: torch.full_like(like, torch.nan)
        try:
            want = _answer(block(x))
            with running:
                return torch.equal(want, _answer(block(x))) and not self._missed
        except Exception:  # a block may do anything with what it gets
            return False
        finally:
            self._empty = torch.empty_like


def _answer(found: torch.Tensor | tuple[torch.Tensor, ...]) -> torch.Tensor:
    return found[0] if isinstance(found, tuple) else found


def shared_of(block: nn.Module) -> nn.Module | None:
    """The shared experts of a block that routes to others."""
    own = dict(block.named_children())
    return next((own[name] for name in NAMES if name in own), None)


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether they are the same numbers in memory, in whatever shape."""
    return (
        one.data_ptr() == other.data_ptr()
        and one.numel() == other.numel()
        and one.is_contiguous()
        and other.is_contiguous()
    )
