"""Ranks whose devices reach each other's memory: small sums go there in one kernel, large ones through NCCL."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import uuid4

import torch
from torch import distributed
from torch._C._distributed_c10d import _register_process_group, _SymmetricMemory, _unregister_process_group

from stepwell_kernels.collective.group import Group, Moving
from stepwell_kernels.collective.torch_group import TorchGroup
from stepwell_kernels.fused.norm import Norm

ROWS = 512
"""Rows of the largest sum that goes in one kernel, times ranks, each of which sends its part to all others.

NCCL is faster at larger ones (two H200s, rows of 4096).
"""
WIDE = 4096
"""Pairs of numbers that a row may have."""


class SymmetricGroup(Group):
    """One-shot sums beside a TorchGroup, which does all else. See `over`."""

    def __init__(self, inner: TorchGroup, met: _Met) -> None:
        super().__init__(inner.rank, inner.size)
        self._inner, self._met = inner, met
        self._peers = torch.tensor(met.handle.buffer_ptrs, dtype=torch.int64, device=inner.device)
        self._counts = torch.zeros(ROWS // inner.size, dtype=torch.int32, device=inner.device)

    @classmethod
    def over(cls, inner: TorchGroup, log: logging.Logger) -> Group:
        """The group where all ranks can have it; else `inner` itself, and the log says why."""
        met, why = None, "another rank has no symmetric memory"
        try:
            met = _meet(inner)
        except Exception as error:  # torch raises whatever driver, devices and their links make of it
            why = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
        (all_met,) = inner.least(int(met is not None))
        if met is None or not all_met:
            log.warning("small sums over ranks go through NCCL: %s", why)
            return inner
        return cls(inner, met)

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        if not self._small(x):
            return self._inner.all_reduce(x)
        self._sum(x, None, None)
        return x

    def all_reduce_add_norm(
        self, x: torch.Tensor, residual: torch.Tensor, norm: Norm, before: Norm | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        fits = x.dim() == 3 or x.dtype == torch.bfloat16
        if before is not None or not fits or not self._small(residual) or not x.is_contiguous():
            return super().all_reduce_add_norm(x, residual, norm, before)
        return self._sum(x, residual, norm)

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        return self._inner.all_gather(x)

    def least(self, *numbers: int) -> tuple[int, ...]:
        return self._inner.least(*numbers)

    def all_to_all(
        self,
        out: torch.Tensor,
        x: torch.Tensor,
        arrive: Sequence[int] | None = None,
        leave: Sequence[int] | None = None,
    ) -> Moving:
        return self._inner.all_to_all(out, x, arrive, leave)

    def gather(self, out: torch.Tensor, x: torch.Tensor) -> Moving:
        return self._inner.gather(out, x)

    def close(self) -> None:
        if self._inner.live:
            _unregister_process_group(self._met.name)
        self._inner.close()

    def _small(self, x: torch.Tensor) -> bool:
        dim = x.shape[-1]
        small = 0 < x.numel() <= len(self._counts) * dim and dim <= 2 * WIDE and dim % 2 == 0
        return small and x.dtype == torch.bfloat16 and x.is_contiguous()

    def _sum(
        self, x: torch.Tensor, residual: torch.Tensor | None, norm: Norm | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        from stepwell_kernels.collective.one_shot import one_shot

        flat = x if residual is not None else x.view(-1, x.shape[-1])
        return one_shot(flat, self._peers, self._counts, self.rank, self.size, WIDE, residual, norm)


@dataclass(frozen=True, slots=True)
class _Met:
    """What has to live as long as the ranks write into each other's memory."""

    name: str
    group: distributed.ProcessGroup
    """torch finds it by its name, and does not keep it."""
    words: torch.Tensor
    handle: _SymmetricMemory


def _meet(inner: TorchGroup) -> _Met:
    """Words of this rank that all others can write, zeroed on every rank before anybody does."""
    store = distributed.PrefixStore("symmetric", inner.store)
    if inner.rank == 0:
        store.set("name", f"stepwell-{uuid4().hex}")
    name = store.get("name").decode()
    _SymmetricMemory.set_group_info(name, inner.rank, inner.size, store)
    group = inner.named(name, store)
    _register_process_group(name, group)  # some versions of torch look groups up there instead
    words = _SymmetricMemory.empty_strided_p2p((2 * ROWS * WIDE,), (1,), torch.int64, inner.device, name).zero_()
    handle = _SymmetricMemory.rendezvous(words, name)
    torch.cuda.synchronize(inner.device)
    inner.least(0)
    return _Met(name, group, words, handle)
