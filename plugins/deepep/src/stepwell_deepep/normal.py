"""DeepEP's normal mode: many tokens, each sent once to a rank, however many of its experts are there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import distributed

from stepwell import ConfigError, Dispatched, Format, Traffic
from stepwell_deepep.by_hand import ByHand
from stepwell_deepep.config import Chunks, NormalConfig
from stepwell_deepep.made import made
from stepwell_kernels.dispatch.library import Lent, LibraryDispatcher, Peers

NAME = "deepep"
RANKS = (2, 4, 8)
"""Within a node; the library has kernels for these. More are whole nodes of eight."""
TOP_K = 32
LOCAL = 1024
WIDE = 8176
"""Numbers of a token, at most: half of it has to fit a buffer of its kernels."""


@dataclass(slots=True, kw_only=True)
class Sent(Lent):
    """A batch, and what the library gave for it."""

    x: torch.Tensor
    ready: Any
    """The event after which `x` may be read."""
    handle: Any = None
    event: Any = None
    """After which what came back may be read."""
    sums: torch.Tensor | None = None


class DeepEP(LibraryDispatcher[Sent]):
    """Over `Buffer`. Its dispatch ends on the host, when all ranks have said how much they send.

    So a dispatch begins with an event alone, and the library is called in its finish: what was queued between the two
    keeps the device busy while the host waits, and the tokens go as soon as the event allows, beside it.
    """

    format = Format.ONCE

    def __init__(self, library: ModuleType, config: NormalConfig, join: Callable[[], Peers]) -> None:
        super().__init__(NAME, join)
        self._library, self._config = library, config
        self._buffer: Any = None
        self._index = getattr(library, "topk_idx_t", torch.int64)

    def _open(self, traffic: Traffic, peers: Peers) -> int:
        _judge(traffic, peers.size)
        buffer = self._library.Buffer
        buffer.set_num_sms(self._config.num_sms)
        self._there = self._chunks(self._config.dispatch_chunks, buffer.get_dispatch_config, peers.size)
        self._back = self._chunks(self._config.combine_chunks, buffer.get_combine_config, peers.size)
        wide, both = traffic.hidden * torch.bfloat16.itemsize, (self._there, self._back)
        nvlink = max(each.get_nvl_buffer_size_hint(wide, peers.size) for each in both)
        rdma = max(each.get_rdma_buffer_size_hint(wide, peers.size) for each in both)
        group = peers.named(NAME, distributed.PrefixStore(NAME, peers.store))
        sms = self._config.num_sms
        self._buffer = made(
            lambda: buffer(group, nvlink, rdma, num_qps_per_rank=sms, explicitly_destroy=True), NAME, nvlink + rdma
        )
        self._experts = traffic.experts
        return traffic.max_tokens

    def _send(self, tokens: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor, count: int) -> Sent:
        experts = experts.to(self._index)
        return Sent(experts=experts, weights=weights, tokens=count, x=tokens, ready=self._buffer.capture())

    def _receive(self, batch: Sent) -> Dispatched[torch.Tensor]:
        beside = {"async_finish": True, "allocate_on_comm_stream": True}
        *layout, laid_out = self._buffer.get_dispatch_layout(
            batch.experts, self._experts, previous_event=batch.ready, **beside
        )
        to_rank, to_node, to_expert, in_rank = layout
        rows, experts, weights, counts, batch.handle, event = self._buffer.dispatch(
            batch.x,
            num_tokens_per_rank=to_rank,
            num_tokens_per_rdma_rank=to_node,
            is_token_in_rank=in_rank,
            num_tokens_per_expert=to_expert,
            topk_idx=batch.experts,
            topk_weights=batch.weights,
            config=self._there,
            previous_event=laid_out,
            **beside,
        )
        event.current_stream_wait()
        on_device = torch.tensor(counts, dtype=torch.int32).to(rows.device, non_blocking=True)
        return Dispatched(rows, on_device, batch, experts.long(), weights, rows=tuple(counts))

    def _return(self, outputs: torch.Tensor, batch: Sent) -> None:
        batch.sums, _, batch.event = self._buffer.combine(
            outputs,
            batch.handle,
            config=self._back,
            previous_event=self._buffer.capture(),
            async_finish=True,
            allocate_on_comm_stream=True,
        )

    def _sum(self, batch: Sent) -> torch.Tensor:
        batch.event.current_stream_wait()
        assert batch.sums is not None
        return batch.sums

    def direct(self, tokens: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor) -> ByHand:
        """The library alone; see `HasDirect`."""
        buffer, experts = self._buffer, experts.to(self._index)

        def there() -> tuple[torch.Tensor, object]:
            to_rank, to_node, to_expert, in_rank, _ = buffer.get_dispatch_layout(experts, self._experts)
            layout = {"num_tokens_per_rdma_rank": to_node, "is_token_in_rank": in_rank}
            layout |= {"num_tokens_per_rank": to_rank, "num_tokens_per_expert": to_expert}
            rows, _, _, _, handle, _ = buffer.dispatch(
                tokens, **layout, topk_idx=experts, topk_weights=weights, config=self._there
            )
            return rows, handle

        return ByHand(there, lambda rows, handle: buffer.combine(rows, handle, config=self._back))

    def _free(self) -> None:
        self._buffer = None  # not destroyed, which would wait for all ranks: the end of the process gives it back

    def _chunks(self, own: Chunks | None, library: Callable[[int], Any], ranks: int) -> Any:
        if own is not None:
            return self._library.Config(self._config.num_sms, *own)
        try:
            return library(ranks)
        except AssertionError:
            why = f"the library has no settings for {ranks} ranks: set dispatch_chunks and combine_chunks"
            raise ConfigError(f"dispatch {NAME!r}: {why}") from None


def _judge(traffic: Traffic, ranks: int) -> None:
    if ranks not in RANKS and (ranks < 8 or ranks % 8):
        raise ConfigError(f"dispatch {NAME!r}: it runs on 2, 4 or 8 ranks, or whole nodes of 8, not on {ranks}")
    if traffic.experts % ranks or traffic.experts // ranks > LOCAL:
        why = f"{traffic.experts} experts do not spread over {ranks} ranks, at most {LOCAL} on each"
        raise ConfigError(f"dispatch {NAME!r}: {why}")
    if traffic.top_k > TOP_K:
        raise ConfigError(f"dispatch {NAME!r}: its kernels take {TOP_K} experts of a token, not {traffic.top_k}")
    if traffic.hidden % 16 or traffic.hidden > WIDE:
        why = f"a hidden size has to be a multiple of 16 up to {WIDE}, and {traffic.hidden} is not"
        raise ConfigError(f"dispatch {NAME!r}: {why}")
