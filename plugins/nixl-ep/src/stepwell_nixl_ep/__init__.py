"""The plugin that offers NIXL EP as dispatch."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

from stepwell import Capability, Check, Context, Dispatcher, Offer, hookimpl
from stepwell_nixl_ep.config import NixlEPConfig
from stepwell_nixl_ep.fit import check, missing, package

if TYPE_CHECKING:
    import torch


def make(config: NixlEPConfig, context: Context) -> Dispatcher[torch.Tensor]:
    """Low latency; ranks meet when it is opened."""
    from stepwell_kernels.dispatch.library import meet
    from stepwell_nixl_ep.dispatch import NAME, NixlEP

    library = import_module(package() or "nixl_ep")
    return NixlEP(library, config, partial(meet, context, NAME, config.timeout_s))


@hookimpl
def stepwell_dispatchers() -> list[Offer[Dispatcher[torch.Tensor]]]:
    """The one offer."""
    return [Offer("nixl-ep", make, NixlEPConfig, missing, frozenset({Capability.GRAPH_SAFE}))]


@hookimpl
def stepwell_checks() -> list[Check]:
    """Whether the library loads."""
    return [Check("library", check)]
