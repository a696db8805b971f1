"""Calls of the library: tokens come once a rank, with all their experts, and sums come back unweighted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from stepwell import ConfigError, Dispatched, Format, Traffic
from stepwell_kernels.dispatch.library import Lent, LibraryDispatcher, Peers
from stepwell_mori.config import MoriConfig

NAME = "mori"
MEETING = "mori/meeting"
SPLIT = "AsyncLL"
"""The one kernel whose sends and receives are apart."""


@dataclass(slots=True, kw_only=True)
class Sent(Lent):
    """A batch, and what the library gave for it."""

    came: tuple[torch.Tensor, ...]
    """Rows, weights, scales, experts, and how many of the rows came: the library's own memory."""
    sums: torch.Tensor | None = None


class Mori(LibraryDispatcher[Sent]):
    """Over `EpDispatchCombineOp`, which has one set of buffers, so one batch.

    What arrives lies in them, as does what comes back until it is copied out.
    """

    format = Format.ONCE
    in_flight = 1

    def __init__(self, ops: ModuleType, shmem: ModuleType, config: MoriConfig, join: Callable[[], Peers]) -> None:
        super().__init__(NAME, join)
        self._ops, self._shmem, self._config = ops, shmem, config
        self._op: Any = None
        self._split = config.kernel == SPLIT

    def _open(self, traffic: Traffic, peers: Peers) -> int:
        self._own = _share(traffic.experts, peers.size)
        self._first = peers.rank * self._own
        self._connect(peers)
        kernels = self._ops.EpDispatchCombineKernelType
        settings = self._ops.EpDispatchCombineConfig(
            data_type=torch.bfloat16,
            rank=peers.rank,
            world_size=peers.size,
            hidden_dim=traffic.hidden,
            scale_dim=0,
            scale_type_size=1,
            max_token_type_size=torch.bfloat16.itemsize,
            max_num_inp_token_per_rank=traffic.max_tokens,
            num_experts_per_rank=self._own,
            num_experts_per_token=traffic.top_k,
            warp_num_per_block=self._config.warps,
            block_num=self._config.blocks,
            use_external_inp_buf=True,
            kernel_type=getattr(kernels, self._config.kernel),
            gpu_per_node=min(self._config.gpus_per_node, peers.size),
        )
        try:
            self._op = self._ops.EpDispatchCombineOp(settings)
        except RuntimeError as error:
            said = (str(error).strip().splitlines() or [""])[0]
            why = f"room for {traffic.max_tokens} tokens of a rank cannot be had ({said}): raise $MORI_SHMEM_HEAP_SIZE"
            raise ConfigError(f"dispatch {NAME!r}: {why}") from error
        return traffic.max_tokens

    def _send(self, tokens: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor, count: int) -> Sent:
        experts = experts.int()
        send = self._op.dispatch_send if self._split else self._op.dispatch
        came = send(tokens, weights, None, experts)
        return Sent(experts=experts, weights=weights, tokens=count, came=came)

    def _receive(self, batch: Sent) -> Dispatched[torch.Tensor]:
        if self._split:
            self._op.dispatch_recv()
        rows, weights, _, experts, total = batch.came
        here = int(total[0])
        local = experts[:here].long() - self._first
        local = torch.where((local >= 0) & (local < self._own), local, -1)
        counts = torch.zeros(self._own + 1, dtype=torch.int32, device=rows.device)
        counts.index_add_(0, local.flatten() + 1, torch.ones_like(local, dtype=torch.int32).flatten())
        return Dispatched(rows[:here], counts[1:], batch, local, weights[:here])

    def _return(self, outputs: torch.Tensor, batch: Sent) -> None:
        send = self._op.combine_send if self._split else self._op.combine
        batch.sums, _ = send(outputs, None, batch.experts)

    def _sum(self, batch: Sent) -> torch.Tensor:
        if self._split:
            self._op.combine_recv()
        assert batch.sums is not None
        return batch.sums[: batch.tokens].clone()

    def _free(self) -> None:
        op, self._op = self._op, None
        if op is not None:
            self._shmem.shmem_finalize()

    def _connect(self, peers: Peers) -> None:
        """Have the library's memory, which all ranks reach; rank 0 says where they meet for it."""
        if peers.rank == 0:
            peers.store.set(MEETING, self._shmem.shmem_get_unique_id())
        meeting = peers.store.get(MEETING)
        if self._shmem.shmem_init_attr(self._shmem.MORI_SHMEM_INIT_WITH_UNIQUEID, peers.rank, peers.size, meeting):
            raise ConfigError(
                f"dispatch {NAME!r}: memory that all ranks reach cannot be had; it says why on its output"
            )


def _share(experts: int, ranks: int) -> int:
    if experts % ranks:
        raise ConfigError(f"dispatch {NAME!r}: {experts} experts do not spread evenly over {ranks} ranks")
    return experts // ranks
