"""The plugin: dispatchers of the kernels, what measures dispatchers, and what doctor says of both."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import click

from stepwell import Capability, Check, Context, Dispatcher, Offer, hookimpl
from stepwell_kernels.dispatch.apart import Apart
from stepwell_kernels.dispatch.config import AutoConfig, CollectiveConfig, LowLatencyConfig, SlowedConfig

if TYPE_CHECKING:
    import torch

    from stepwell_kernels.collective import Group

NORMAL, LOW_LATENCY = "collective", "collective-low-latency"


def _joining(name: str, context: Context, timeout_s: float) -> Callable[[], Group]:
    """What meets the other ranks, when it is called."""
    from stepwell_kernels.collective import join

    return lambda: join(context.meet, context.rank, context.world, context.device, timeout_s, one_shot=False, name=name)


def _normal(config: CollectiveConfig, context: Context) -> Dispatcher[torch.Tensor]:
    from stepwell_kernels.dispatch.collective import Collective

    return Collective(NORMAL, _joining(NORMAL, context, config.timeout_s), config.timeout_s)


def _low_latency(config: LowLatencyConfig, context: Context) -> Dispatcher[torch.Tensor]:
    from stepwell_kernels.dispatch.low_latency import LowLatency

    return LowLatency(LOW_LATENCY, _joining(LOW_LATENCY, context, config.timeout_s), config.capacity)


def _auto(config: AutoConfig, context: Context) -> Dispatcher[torch.Tensor]:
    from stepwell_kernels.dispatch.auto import Auto

    return Auto(config.normal.make(Apart(context, "normal")), config.low_latency.make(Apart(context, "low")))


def _slowed(config: SlowedConfig, context: Context) -> Dispatcher[torch.Tensor]:
    from stepwell_kernels.dispatch.slowed import Slowed

    return Slowed(
        config.inner.make(Apart(context, "inner")), context.rank, context.world, config.gb_per_s, config.latency_us
    )


@hookimpl
def stepwell_dispatchers() -> Iterable[Offer[Dispatcher[torch.Tensor]]]:
    """Collectives in two modes, and what is made of other dispatchers."""
    return [
        Offer(NORMAL, _normal, CollectiveConfig),
        Offer(LOW_LATENCY, _low_latency, LowLatencyConfig, provides=frozenset({Capability.GRAPH_SAFE})),
        Offer("auto", _auto, AutoConfig),
        Offer("slowed", _slowed, SlowedConfig),
    ]


@hookimpl
def stepwell_benches() -> Iterable[click.Command]:
    """How fast dispatchers are."""
    from stepwell_kernels.bench.dispatch import dispatch

    return [dispatch]


@hookimpl
def stepwell_checks() -> Iterable[Check]:
    """Over what ranks exchange tokens."""
    from stepwell_kernels.dispatch.doctor import collectives

    return [Check("collective", collectives)]
