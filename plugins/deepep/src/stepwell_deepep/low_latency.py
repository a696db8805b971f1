"""DeepEP's low-latency mode: few tokens, straight from a rank's memory to another's, in room that is always there."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import distributed

from stepwell import ConfigError, Traffic
from stepwell_deepep.config import LowLatencyConfig
from stepwell_deepep.made import made
from stepwell_kernels.dispatch.hooked import Arriving, Hook, HookedDispatcher
from stepwell_kernels.dispatch.library import Peers

NAME = "deepep-low-latency"


class DeepEPLowLatency(HookedDispatcher):
    """Over a `Buffer` of its own, so that normal dispatches never leave marks in it that would have to be cleaned.

    A rank that stays silent for 100 s stops the kernel, and so the stream; ranks are not masked.
    """

    multiple = 512

    def __init__(self, library: ModuleType, config: LowLatencyConfig, join: Callable[[], Peers]) -> None:
        super().__init__(NAME, join, config.capacity, config.tokens == "float8")
        self._library, self._nvlink = library, config.nvlink
        self._buffer: Any = None
        self._index = getattr(library, "topk_idx_t", torch.int64)

    def _make(self, traffic: Traffic, peers: Peers, capacity: int) -> None:
        buffer = self._library.Buffer
        size = buffer.get_low_latency_rdma_size_hint(capacity, traffic.hidden, peers.size, traffic.experts)
        group = peers.named(NAME, distributed.PrefixStore(NAME, peers.store))
        self._buffer = made(
            lambda: buffer(
                group,
                num_rdma_bytes=size,
                low_latency_mode=True,
                num_qps_per_rank=traffic.experts // peers.size,
                allow_nvlink_for_low_latency_mode=self._nvlink,
                explicitly_destroy=True,
            ),
            NAME,
            size,
        )
        deep = 2 * (capacity + 1)
        if self._buffer.nvshmem_qp_depth < deep:
            why = f"{capacity} tokens need queues of {deep}, and $NVSHMEM_QP_DEPTH is {self._buffer.nvshmem_qp_depth}"
            raise ConfigError(f"dispatch {NAME!r}: {why}: raise it, or lower capacity")
        self._buffer.clean_low_latency_buffer(capacity, traffic.hidden, traffic.experts)

    def _dispatch(self, tokens: torch.Tensor, experts: torch.Tensor, hooked: bool) -> Arriving:
        rows, counts, handle, _, hook = self._buffer.low_latency_dispatch(
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
        sums, _, hook = self._buffer.low_latency_combine(outputs, experts, weights, handle, return_recv_hook=hooked)
        return sums, hook

    def _free(self) -> None:
        self._buffer = None  # not destroyed, which would wait for all ranks: the end of the process gives it back
