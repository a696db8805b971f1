"""The plugin that offers MORI as dispatch, on AMD GPUs."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

from stepwell import Check, Context, Dispatcher, Offer, hookimpl
from stepwell_mori.config import MoriConfig
from stepwell_mori.fit import check, missing

if TYPE_CHECKING:
    import torch


def make(config: MoriConfig, context: Context) -> Dispatcher[torch.Tensor]:
    """The library's operator; ranks meet when it is opened."""
    from stepwell_kernels.dispatch.library import meet
    from stepwell_mori.dispatch import NAME, Mori

    ops, shmem = import_module("mori.ops"), import_module("mori.shmem")
    return Mori(ops, shmem, config, partial(meet, context, NAME, config.timeout_s))


@hookimpl
def stepwell_dispatchers() -> list[Offer[Dispatcher[torch.Tensor]]]:
    """The one offer. The host reads how many tokens came, so it is in no graph."""
    return [Offer("mori", make, MoriConfig, missing)]


@hookimpl
def stepwell_checks() -> list[Check]:
    """Whether the library loads."""
    return [Check("library", check)]
