"""The plugin that offers DeepEP as dispatch: `deepep`, `deepep-v2` and `deepep-low-latency`."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

from stepwell import Capability, Check, Context, Dispatcher, Offer, hookimpl
from stepwell_deepep.config import ElasticConfig, LowLatencyConfig, NormalConfig
from stepwell_deepep.fit import check, elastic_missing, low_latency_missing, normal_missing

if TYPE_CHECKING:
    import torch


def make(config: NormalConfig, context: Context) -> Dispatcher[torch.Tensor]:
    """Normal mode; ranks meet when it is opened."""
    from stepwell_deepep.normal import NAME, DeepEP
    from stepwell_kernels.dispatch.library import meet

    return DeepEP(import_module("deep_ep"), config, partial(meet, context, NAME, config.timeout_s))


def make_v2(config: ElasticConfig, context: Context) -> Dispatcher[torch.Tensor]:
    """The second generation."""
    from stepwell_deepep.elastic import NAME, DeepEPV2
    from stepwell_kernels.dispatch.library import meet

    return DeepEPV2(import_module("deep_ep"), config, partial(meet, context, NAME, config.timeout_s))


def make_low_latency(config: LowLatencyConfig, context: Context) -> Dispatcher[torch.Tensor]:
    """Low-latency mode."""
    from stepwell_deepep.low_latency import NAME, DeepEPLowLatency
    from stepwell_kernels.dispatch.library import meet

    return DeepEPLowLatency(import_module("deep_ep"), config, partial(meet, context, NAME, config.timeout_s))


@hookimpl
def stepwell_dispatchers() -> list[Offer[Dispatcher[torch.Tensor]]]:
    """One offer a mode. Normal mode waits on the host for sizes, and is in no graph."""
    graphs = frozenset({Capability.GRAPH_SAFE})
    return [
        Offer("deepep", make, NormalConfig, normal_missing),
        Offer("deepep-v2", make_v2, ElasticConfig, elastic_missing),
        Offer("deepep-low-latency", make_low_latency, LowLatencyConfig, low_latency_missing, graphs),
    ]


@hookimpl
def stepwell_checks() -> list[Check]:
    """Whether the library loads."""
    return [Check("library", check)]
