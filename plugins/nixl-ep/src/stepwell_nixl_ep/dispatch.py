"""Calls of the library. A rank that it waits for in vain it masks, and goes on without."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import distributed

from stepwell import ConfigError, Traffic
from stepwell_kernels.dispatch.hooked import Arriving, Hook, HookedDispatcher
from stepwell_kernels.dispatch.library import Peers
from stepwell_nixl_ep.config import NixlEPConfig

NAME = "nixl-ep"


class NixlEP(HookedDispatcher):
    """Over its `Buffer`, whose ranks find each other through the store that they met at."""

    multiple = 512

    def __init__(self, library: ModuleType, config: NixlEPConfig, join: Callable[[], Peers]) -> None:
        super().__init__(NAME, join, config.capacity, config.tokens == "float8")
        self._library, self._timeout_ms = library, int(config.timeout_s * 1000)
        self._buffer: Any = None
        self._index = getattr(library, "topk_idx_t", torch.int64)

    def _make(self, traffic: Traffic, peers: Peers, capacity: int) -> None:
        buffer, own = self._library.Buffer, traffic.experts // peers.size
        size = buffer.get_rdma_size_hint(capacity, traffic.hidden, peers.size, traffic.experts)
        self._buffer = buffer(
            explicitly_destroy=True,
            rank=peers.rank,
            low_latency_mode=True,
            tcp_store_group=distributed.PrefixStore(NAME, peers.store),
            timeout_ms=self._timeout_ms,
        )
        try:
            self._buffer.update_memory_buffers(num_ranks=peers.size, num_experts_per_rank=own, num_rdma_bytes=size)
            self._buffer.connect_ranks([rank for rank in range(peers.size) if rank != peers.rank])
        except RuntimeError as error:
            said = (str(error).strip().splitlines() or [""])[0]
            why = (
                f"{size / 2**20:.0f} MiB for {capacity} tokens of a rank, reached by all ranks, cannot be had ({said})"
            )
            raise ConfigError(f"dispatch {NAME!r}: {why}") from error
        self._mask = torch.zeros(peers.size, dtype=torch.int32, device=peers.device)

    def _dispatch(self, tokens: torch.Tensor, experts: torch.Tensor, hooked: bool) -> Arriving:
        rows, counts, handle, _, hook = self._buffer.dispatch(
            tokens,
            experts.to(self._index),
            self._most,
            self._experts,
            use_fp8=self._float8,
            return_recv_hook=hooked,
        )
        return Arriving(rows, counts, handle, hook)

    def _combine(
        self, outputs: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor, handle: object, hooked: bool
    ) -> tuple[torch.Tensor, Hook | None]:
        experts = experts.to(self._index)
        sums, _, hook = self._buffer.combine(outputs, experts, weights, handle, return_recv_hook=hooked)
        return sums, hook

    def _silent(self) -> torch.Tensor:
        self._buffer.query_mask_buffer(self._mask)
        return self._mask

    def _free(self) -> None:
        buffer, self._buffer = self._buffer, None
        if buffer is not None:
            buffer.destroy()
