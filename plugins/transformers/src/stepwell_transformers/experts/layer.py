"""The experts of one layer: from what its router chose to the sums of their answers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from stepwell_kernels.dispatch.experts import ExpertWeights, grouped
from stepwell_transformers.experts.forward import Forward
from stepwell_transformers.experts.found import Routed
from stepwell_transformers.experts.map import SlotMap
from stepwell_transformers.experts.share import Share
from stepwell_transformers.experts.shared import Shared

NAME = "stepwell_experts"
ATTRIBUTE = "stepwell_layer"


class ExpertLayer:
    """Holds the weights of this rank's slots; whatever belongs to a forward is the forward's."""

    def __init__(self, found: Routed, slots: SlotMap, share: Share, running: Callable[[int], Forward]) -> None:
        """`running` says which forward a batch of so many tokens belongs to."""
        module = found.module
        self.slots = slots
        self.shared: Shared | None = None
        self.counts: torch.Tensor | None = None
        """[experts], int64: real tokens that each got since it was zeroed; None: nobody counts."""
        self._share, self._running, self._hidden = share, running, found.hidden
        self._all = [found.weight(name) for name in found.weights]
        self._weights = ExpertWeights(
            up=found.weight(found.up),
            down=found.weight("down_proj"),
            up_bias=found.optional(f"{found.up}_bias"),
            down_bias=found.optional("down_proj_bias"),
            gate=module._apply_gate if module.has_gate else module.act_fn,
            transposed=module.is_transposed,
            post=module.post_expert_norm if module.has_post_expert_norm else None,
        )
        setattr(module, ATTRIBUTE, self)

    def weights_of(self, slot: int) -> list[torch.Tensor]:
        """What the expert in one of this rank's slots consists of, in place and in one order on every rank."""
        return [weight[slot] for weight in self._all]

    def run(self, tokens: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """[tokens, hidden]: of each the weighted sum of its experts' answers, on every rank that has the tokens."""
        forward = self._running(len(tokens))
        real = forward.told.real
        if self.counts is not None:
            self._count(experts, real)
        start, stop = self._share.span(len(tokens))
        slots = self.slots.slots(experts[start:stop], start)
        if real is not None:
            slots = slots.masked_fill(~real[start:stop, None], -1)
        own, parts = tokens[start:stop], weights[start:stop].float()
        pieces = [slice(at * forward.room, (at + 1) * forward.room) for at in range(forward.rounds)]
        sums = [
            self._round(forward, own[piece], slots[piece], parts[piece], tokens if piece is pieces[0] else None)
            for piece in pieces
        ]
        return self._share.whole(sums[0] if len(sums) == 1 else torch.cat(sums), len(tokens))

    def rest(self, forward: Forward, top_k: int) -> None:
        """As `run`, of a rank that has no tokens while others do."""
        tokens = self._all[0].new_empty((0, self._hidden))
        nowhere = torch.empty((0, top_k), dtype=torch.int64, device=tokens.device)
        for _ in range(forward.rounds):
            self._round(forward, tokens, nowhere, nowhere.float(), None)

    def _round(
        self,
        forward: Forward,
        tokens: torch.Tensor,
        slots: torch.Tensor,
        weights: torch.Tensor,
        everything: torch.Tensor | None,
    ) -> torch.Tensor:
        dispatcher = forward.dispatcher
        sent = dispatcher.dispatch_start(tokens.contiguous(), slots.contiguous(), weights.contiguous())
        if everything is not None and self.shared is not None:
            self.shared.meanwhile(forward, everything)
        forward.told.turn()
        got = dispatcher.dispatch_finish(sent)
        back = dispatcher.combine_start(grouped(got, dispatcher.format, self._weights), got)
        forward.told.turn()
        return dispatcher.combine_finish(back)

    def _count(self, experts: torch.Tensor, real: torch.Tensor | None) -> None:
        assert self.counts is not None
        ones = torch.ones_like(experts) if real is None else real[:, None].expand_as(experts).to(torch.int64)
        self.counts.index_add_(0, experts.reshape(-1), ones.reshape(-1))


def through_slots(
    module: torch.nn.Module, tokens: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """The experts function of every layer."""
    layer = getattr(module, ATTRIBUTE)
    assert isinstance(layer, ExpertLayer)
    return layer.run(tokens, experts, weights)


ALL_EXPERTS_FUNCTIONS.register(NAME, through_slots)
