"""Memory that all ranks reach: torch's symmetric memory, mapped over NVLink into every rank's own addresses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from uuid import uuid4

import torch
from torch import distributed
from torch._C._distributed_c10d import _register_process_group, _SymmetricMemory, _unregister_process_group

from stepwell import ConfigError, Context
from stepwell_kernels.collective import TorchGroup


@dataclass(eq=False)
class Shared:
    """A rank's part, zeroed on all ranks before anyone has it."""

    own: torch.Tensor
    """uint8."""
    peers: tuple[int, ...]
    """Where each rank's part begins, in this rank's addresses; its own among them."""
    leave: Callable[[], None] = lambda: None
    """Waits for nobody."""


def share(context: Context, name: str, start_s: float, size: int) -> Shared:
    """`size` bytes on each rank, once all are there. ConfigError where one of them cannot."""
    device = torch.device(context.device)
    if context.world == 1:
        own = torch.zeros(size, dtype=torch.uint8, device=device)
        return Shared(own, (own.data_ptr(),))
    group = TorchGroup.join(context.meet, context.rank, context.world, device, start_s, name=name)
    shared, why = None, "another rank cannot"
    try:
        shared = _rendezvous(group, name, size)
    except Exception as error:  # torch raises whatever driver, devices and their links make of it
        why = (str(error).strip().splitlines() or [type(error).__name__])[0]
    (everyone,) = group.least(int(shared is not None))
    if shared is None or not everyone:
        group.close()
        gib = size / 2**30
        raise ConfigError(f"dispatch by symm needs {gib:.2f} GiB that all ranks reach, which is not to be had: {why}")
    return shared


def _rendezvous(group: TorchGroup, prefix: str, size: int) -> Shared:
    store = distributed.PrefixStore(prefix, group.store)
    if group.rank == 0:
        store.set("name", f"stepwell-{prefix}-{uuid4().hex}")
    name = store.get("name").decode()
    _SymmetricMemory.set_group_info(name, group.rank, group.size, store)
    known = group.named(name, store)
    _register_process_group(name, known)  # some versions of torch look groups up there instead
    own = _SymmetricMemory.empty_strided_p2p((size,), (1,), torch.uint8, group.device, name).zero_()
    handle = _SymmetricMemory.rendezvous(own, name)
    torch.cuda.synchronize(group.device)
    kept = [known, handle]  # torch finds the group by its name, and keeps neither

    def leave() -> None:
        if kept:
            kept.clear()
            _unregister_process_group(name)
            group.close()

    return Shared(own, tuple(handle.buffer_ptrs), leave)
