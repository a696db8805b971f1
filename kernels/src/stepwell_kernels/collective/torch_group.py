"""Ranks that are processes, over torch.distributed's back ends: NCCL between CUDA devices, gloo between CPUs.

The back end's object is made here and belongs to the group, so that nothing of torch.distributed's global state is
touched: one process may hold several groups, and whoever else uses torch.distributed in it is not disturbed.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from urllib.parse import urlparse

import torch
from torch import distributed
from torch._C._distributed_c10d import AllgatherOptions

from stepwell_kernels.collective.group import Group, Moving


class TorchGroup(Group):
    """See `join`."""

    def __init__(self, backend: distributed.ProcessGroup, store: distributed.Store, device: torch.device) -> None:
        super().__init__(backend.rank(), backend.size())
        self.store, self.device = store, device
        self._backend: distributed.ProcessGroup | None = backend

    @classmethod
    def join(
        cls, meet: str, rank: int, world: int, device: torch.device | str, timeout_s: float, name: str = ""
    ) -> TorchGroup:
        """Meet the others at `meet`, an init method of torch.distributed such as `file:///...` or `tcp://host:port`.

        Returns once every rank is there; raises if one is not within `timeout_s`. A collective that takes longer ends
        in an error too: on the CPU by an exception, on CUDA by NCCL's watchdog, which ends the process. Groups of the
        same ranks at one place have each a `name`, to which a `#fragment` of the place belongs.
        """
        meet, _, apart = meet.partition("#")
        name = f"{name}-{apart.replace('#', '-')}" if apart else name
        device, patience = torch.device(device), timedelta(seconds=timeout_s)
        store, _, _ = next(distributed.rendezvous(_place(meet, name), rank, world, timeout=patience))
        store.set_timeout(patience)
        make = _nccl if device.type == "cuda" else _gloo
        store = distributed.PrefixStore(f"stepwell-{name}", store)
        group = cls(make(store, rank, world, patience, _is_local(meet)), store, device)
        group.least(0)
        return group

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        _wait(self._live().allreduce([x], _reducing(distributed.ReduceOp.SUM)))
        return x

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        parts = x.new_empty((self.size * x.shape[0], *x.shape[1:]))
        gathering = AllgatherOptions()
        gathering.asyncOp = False
        _wait(self._live()._allgather_base(parts, x.contiguous(), gathering))
        return torch.cat(parts.chunk(self.size), dim=-1)

    def least(self, *numbers: int) -> tuple[int, ...]:
        said = torch.tensor(numbers, dtype=torch.int64, device=self.device)
        _wait(self._live().allreduce([said], _reducing(distributed.ReduceOp.MIN)))
        return tuple(said.tolist())

    def all_to_all(
        self,
        out: torch.Tensor,
        x: torch.Tensor,
        arrive: Sequence[int] | None = None,
        leave: Sequence[int] | None = None,
    ) -> Moving:
        return self._live().alltoall_base(out, x, list(arrive or ()), list(leave or ()))

    def gather(self, out: torch.Tensor, x: torch.Tensor) -> Moving:
        return self._live()._allgather_base(out.view(-1, *x.shape[1:]), x, AllgatherOptions())

    def close(self) -> None:
        backend, self._backend = self._backend, None
        if backend is not None:
            backend.abort()

    @property
    def live(self) -> bool:
        """Whether it was not closed yet."""
        return self._backend is not None

    def named(self, name: str, store: distributed.Store) -> distributed.ProcessGroup:
        """The same group as torch.distributed knows one by name."""
        group = distributed.ProcessGroup(store, self.rank, self.size)
        kinds = distributed.ProcessGroup.BackendType
        kind = kinds.NCCL if self.device.type == "cuda" else kinds.GLOO
        group._register_backend(self.device, kind, self._live())
        group._set_group_name(name)
        return group

    def _live(self) -> distributed.ProcessGroup:
        if self._backend is None:
            raise RuntimeError("this rank has left its group")
        return self._backend


def _nccl(
    store: distributed.Store, rank: int, world: int, patience: timedelta, local: bool
) -> distributed.ProcessGroup:
    options = distributed.ProcessGroupNCCL.Options()
    options._timeout = patience
    return distributed.ProcessGroupNCCL(store, rank, world, options)


def _gloo(
    store: distributed.Store, rank: int, world: int, patience: timedelta, local: bool
) -> distributed.ProcessGroup:
    options = distributed.ProcessGroupGloo._Options()
    options._timeout = patience
    make = distributed.ProcessGroupGloo
    options._devices = [make.create_device(hostname="127.0.0.1") if local else make.create_default_device()]
    return make(store, rank, world, options)


def _place(meet: str, name: str) -> str:
    """A file serves one group: each counts who has left it, and the last one deletes it."""
    return f"{meet}-{name}" if name and urlparse(meet).scheme == "file" else meet


def _is_local(meet: str) -> bool:
    """Whether all who can read `meet` are on this machine, so that nothing has to listen to others."""
    where = urlparse(meet)
    return where.scheme == "file" or where.hostname in ("127.0.0.1", "localhost", "::1")


def _reducing(how: distributed.ReduceOp.RedOpType) -> distributed.AllreduceOptions:
    """Options of an all-reduce that runs on the caller's own CUDA stream: no other stream has to be waited for."""
    options = distributed.AllreduceOptions()
    options.reduceOp, options.asyncOp = how, False
    return options


def _wait(work: distributed.Work | None) -> None:
    """For what gloo does on threads of its own. NCCL's is in order with all else of the stream, and there is none."""
    if work is not None:
        work.wait()
