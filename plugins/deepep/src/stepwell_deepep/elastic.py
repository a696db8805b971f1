"""DeepEP's second generation: one buffer for many tokens and few, and a row for each expert of a token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import distributed

from stepwell import ConfigError, Dispatched, Format, Traffic
from stepwell_deepep.by_hand import ByHand
from stepwell_deepep.config import ElasticConfig
from stepwell_deepep.made import made
from stepwell_kernels.dispatch.library import Lent, LibraryDispatcher, Peers

NAME = "deepep-v2"
BESIDE = {"async_with_compute_stream": True, "allocate_on_comm_stream": True}


@dataclass(slots=True, kw_only=True)
class Expanded(Lent):
    """A batch, and what the library gave for it."""

    x: torch.Tensor
    ready: Any
    """The event after which `x` may be read."""
    rows: torch.Tensor | None = None
    shares: torch.Tensor | None = None
    """[rows]: the weight of each."""
    handle: Any = None
    event: Any = None
    sums: torch.Tensor | None = None


class DeepEPV2(LibraryDispatcher[Expanded]):
    """Over `ElasticBuffer`, in its expanding layout. Its combine adds rows up as they are, so they are weighted first.

    With exact sizes its dispatch ends on the host, and is called in the finish, as that of the first generation.
    """

    format = Format.SORTED

    def __init__(self, library: ModuleType, config: ElasticConfig, join: Callable[[], Peers]) -> None:
        super().__init__(NAME, join)
        self._library, self._config = library, config
        self._exact = config.sizes == "exact"
        self._buffer: Any = None
        self._index = getattr(library, "topk_idx_t", torch.int64)

    def _open(self, traffic: Traffic, peers: Peers) -> int:
        if traffic.experts % peers.size:
            why = f"{traffic.experts} experts do not spread evenly over {peers.size} ranks"
            raise ConfigError(f"dispatch {NAME!r}: {why}")
        if traffic.hidden % 8:
            raise ConfigError(f"dispatch {NAME!r}: a hidden size has to be a multiple of 8, not {traffic.hidden}")
        config, elastic = self._config, self._library.ElasticBuffer
        most = traffic.max_tokens if self._exact else min(config.capacity, traffic.max_tokens)
        group = peers.named(NAME, distributed.PrefixStore(NAME, peers.store))
        size = elastic.get_buffer_size_hint(
            group, most, traffic.hidden, num_topk=traffic.top_k, allow_hybrid_mode=config.hybrid
        )
        self._buffer = made(
            lambda: elastic(
                group,
                num_bytes=size,
                num_max_tokens_per_rank=most,
                allow_hybrid_mode=config.hybrid,
                num_cpu_timeout_secs=config.timeout_s,
                num_gpu_timeout_secs=config.timeout_s,
                explicitly_destroy=True,
            ),
            NAME,
            size,
        )
        self._experts, self._most = traffic.experts, most
        self.capacity = None if self._exact else most
        return most

    def _send(self, tokens: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor, count: int) -> Expanded:
        experts = experts.to(self._index)
        batch = Expanded(experts=experts, weights=weights, tokens=count, x=tokens, ready=self._buffer.capture())
        if not self._exact:
            self._launch(batch)
        return batch

    def _receive(self, batch: Expanded) -> Dispatched[torch.Tensor]:
        if self._exact:
            self._launch(batch)
        batch.event.current_stream_wait()
        assert batch.rows is not None
        rows = tuple(batch.handle.num_recv_tokens_per_expert_list) if self._exact else None
        return Dispatched(batch.rows, batch.handle.num_unaligned_recv_tokens_per_expert, batch, rows=rows)

    def _return(self, outputs: torch.Tensor, batch: Expanded) -> None:
        assert batch.shares is not None
        # Into a tensor of outputs' type: the product is computed in float32 all the same, and never stored so.
        weighted = torch.mul(outputs, batch.shares[:, None], out=torch.empty_like(outputs))
        batch.sums, _, batch.event = self._buffer.combine(
            weighted, batch.handle, num_sms=self._config.num_sms, previous_event=self._buffer.capture(), **BESIDE
        )

    def _sum(self, batch: Expanded) -> torch.Tensor:
        batch.event.current_stream_wait()
        assert batch.sums is not None
        return batch.sums

    def direct(self, tokens: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor) -> ByHand:
        """The library alone; see `HasDirect`."""
        buffer, experts = self._buffer, experts.to(self._index)
        sizes = {"num_experts": self._experts, "num_max_tokens_per_rank": self._most}

        def there() -> tuple[torch.Tensor, object]:
            rows, _, _, handle, _ = buffer.dispatch(
                tokens,
                topk_idx=experts,
                topk_weights=weights,
                **sizes,
                num_sms=self._config.num_sms,
                do_cpu_sync=self._exact,
                do_expand=True,
            )
            return rows, handle

        return ByHand(there, lambda rows, handle: buffer.combine(rows, handle, num_sms=self._config.num_sms))

    def _free(self) -> None:
        self._buffer = None  # not destroyed, which would wait for all ranks: the end of the process gives it back

    def _launch(self, batch: Expanded) -> None:
        batch.rows, _, batch.shares, batch.handle, batch.event = self._buffer.dispatch(
            batch.x,
            topk_idx=batch.experts,
            topk_weights=batch.weights,
            num_experts=self._experts,
            num_max_tokens_per_rank=self._most,
            num_sms=self._config.num_sms,
            previous_event=batch.ready,
            do_handle_copy=False,
            do_cpu_sync=self._exact,
            do_expand=True,
            **BESIDE,
        )
