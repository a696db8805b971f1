"""Ranks whose devices reach each other's memory: small sums go there in one kernel, large ones through NCCL."""

from __future__ import annotations

import logging

import torch
from torch import distributed
from torch._C._distributed_c10d import _register_process_group, _SymmetricMemory

from stepwell_kernels.collective.group import Group
from stepwell_kernels.collective.torch_group import TorchGroup
from stepwell_kernels.fused.norm import Norm

ROWS = 128
"""Rows of the largest sum that goes in one kernel; NCCL is faster at larger ones."""
WIDE = 4096
"""Pairs of numbers that a row may have."""


class SymmetricGroup(Group):
    """One-shot sums beside a TorchGroup, which does all else. See `over`."""

    def __init__(self, inner: TorchGroup, peers: torch.Tensor, words: torch.Tensor, handle: object) -> None:
        super().__init__(inner.rank, inner.size)
        self._inner, self._peers, self._kept = inner, peers, (words, handle)
        self._counts = torch.zeros(ROWS, dtype=torch.int32, device=words.device)

    @classmethod
    def over(cls, inner: TorchGroup, log: logging.Logger) -> Group:
        """The group where all ranks can have it; else `inner` itself, and the log says why."""
        why = ""
        try:
            handle, words = _meet(inner)
            peers = torch.tensor(list(handle.buffer_ptrs), dtype=torch.int64, device=inner.device)
        except Exception as error:  # torch raises whatever driver, devices and their links make of it
            why = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
        if inner.least(int(not why)) == (0,):
            log.warning("small sums over ranks go through NCCL: %s", why or "another rank has no symmetric memory")
            return inner
        return cls(inner, peers, words, handle)

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        if not self._small(x):
            return self._inner.all_reduce(x)
        self._sum(x, None, None)
        return x

    def all_reduce_add_norm(
        self, x: torch.Tensor, residual: torch.Tensor, norm: Norm, before: Norm | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if before is not None or not self._small(x) or not residual.is_contiguous():
            return super().all_reduce_add_norm(x, residual, norm, before)
        return self._sum(x, residual, norm)

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        return self._inner.all_gather(x)

    def least(self, *numbers: int) -> tuple[int, ...]:
        return self._inner.least(*numbers)

    def close(self) -> None:
        self._inner.close()

    def _small(self, x: torch.Tensor) -> bool:
        dim = x.shape[-1]
        small = 0 < x.numel() <= ROWS * dim and dim <= 2 * WIDE and dim % 2 == 0
        return small and x.dtype == torch.bfloat16 and x.is_contiguous()

    def _sum(
        self, x: torch.Tensor, residual: torch.Tensor | None, norm: Norm | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        from stepwell_kernels.collective.one_shot import one_shot

        flat = x.view(-1, x.shape[-1])
        own = None if residual is None else residual.view(flat.shape)
        return one_shot(flat, self._peers, self._counts, self.rank, self.size, WIDE, own, norm)


def _meet(inner: TorchGroup) -> tuple[_SymmetricMemory, torch.Tensor]:
    """Words of this rank that all others can write, zeroed on every rank before anybody does."""
    name = f"stepwell-{id(inner)}"
    store = distributed.PrefixStore("symmetric", inner.store)
    _SymmetricMemory.set_group_info(name, inner.rank, inner.size, store)
    _register_process_group(name, inner.named(name, store))  # some versions of torch look groups up there instead
    words = _SymmetricMemory.empty_strided_p2p(
        (2 * inner.size * ROWS * WIDE,), (1,), torch.int64, inner.device, name
    ).zero_()
    handle = _SymmetricMemory.rendezvous(words)
    torch.cuda.synchronize(inner.device)
    inner.least(0)
    return handle, words
