"""What a rank on a CUDA device is made with; of its own, so that a process that is spawned can import it."""

from __future__ import annotations

from dataclasses import replace

import torch

from stepwell import Dispatcher, Part, Traffic
from stepwell_kernels.dispatch.config import CollectiveConfig, LowLatencyConfig
from stepwell_kernels.plugin import stepwell_dispatchers
from stepwell_testkit.context import KitContext

OFFERS = {offer.name: offer for offer in stepwell_dispatchers()}
PARTS = {
    "collective": Part(OFFERS["collective"], CollectiveConfig(timeout_s=30.0)),
    "collective-low-latency": Part(OFFERS["collective-low-latency"], LowLatencyConfig(timeout_s=30.0)),
}


def made(name: str, context: KitContext) -> Dispatcher[torch.Tensor]:
    torch.cuda.set_device(context.rank)
    return PARTS[name].make(replace(context, device=f"cuda:{context.rank}"))


def normal(context: KitContext) -> Dispatcher[torch.Tensor]:
    return made("collective", context)


def low_latency(context: KitContext) -> Dispatcher[torch.Tensor]:
    return made("collective-low-latency", context)


def captured(dispatcher: Dispatcher[torch.Tensor], rank: int) -> float:
    """A batch captured once and replayed with other tokens and experts: how far its sums are off, at most."""
    dispatcher.open(Traffic(experts=8, top_k=2, hidden=256, dtype="bfloat16", max_tokens=16))
    batch = [torch.zeros(16, 256), torch.zeros(16, 2, dtype=torch.int64), torch.zeros(16, 2)]
    tokens, experts, weights = (one.cuda() for one in (batch[0].bfloat16(), *batch[1:]))
    experts[:, 1] = 1

    def exchange() -> torch.Tensor:
        got = dispatcher.dispatch_finish(dispatcher.dispatch_start(tokens, experts, weights))
        return dispatcher.combine_finish(dispatcher.combine_start(got.tokens.clone(), got))

    exchange()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        sums = exchange()
    off = 0.0
    for seed in range(3):
        dice = torch.Generator().manual_seed(10 * seed + rank)
        tokens.copy_(torch.randn(16, 256, generator=dice))
        experts.copy_(torch.rand(16, 8, generator=dice).topk(2).indices)
        weights.copy_(torch.rand(16, 2, generator=dice))
        graph.replay()
        right = tokens.float() * weights.sum(1, keepdim=True)
        off = max(off, float((sums.float() - right).abs().max() / right.abs().max()))
    return off
