"""The plugin that offers Mooncake EP as dispatch."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

from stepwell import Capability, Check, Context, Dispatcher, Offer, hookimpl
from stepwell_mooncake_ep.config import MooncakeEPConfig
from stepwell_mooncake_ep.fit import check, missing

if TYPE_CHECKING:
    import torch


def make(config: MooncakeEPConfig, context: Context) -> Dispatcher[torch.Tensor]:
    """Low latency; ranks meet when it is opened."""
    from stepwell_kernels.dispatch.library import meet
    from stepwell_mooncake_ep.dispatch import NAME, MooncakeEP

    library = import_module("mooncake.mooncake_ep_buffer")
    return MooncakeEP(library, config, partial(meet, context, NAME, config.timeout_s))


@hookimpl
def stepwell_dispatchers() -> list[Offer[Dispatcher[torch.Tensor]]]:
    """The one offer."""
    return [Offer("mooncake-ep", make, MooncakeEPConfig, missing, frozenset({Capability.GRAPH_SAFE}))]


@hookimpl
def stepwell_checks() -> list[Check]:
    """Whether the library loads."""
    return [Check("library", check)]
