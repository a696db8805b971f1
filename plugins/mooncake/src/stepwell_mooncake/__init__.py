"""The plugin that offers the `mooncake` storage."""

from __future__ import annotations

from collections.abc import Iterable

import click

from stepwell import ArenaView, Capability, Check, Context, Native, Offer, Storage, hookimpl
from stepwell_mooncake.config import MooncakeConfig
from stepwell_mooncake.wheel import finding, missing


def make(config: MooncakeConfig, context: Context) -> Storage:
    """The store; the client is imported only where it is used."""
    from stepwell_mooncake.client import connect, placing
    from stepwell_mooncake.store import MooncakeStorage

    return MooncakeStorage(config, context, connect(config, context.rank), placing(config))


def native(config: MooncakeConfig, context: Context, arena: ArenaView) -> Native:
    """The client library alone."""
    from stepwell_mooncake.bare import MooncakeNative

    return MooncakeNative(config, context, arena)


@hookimpl
def stepwell_storages() -> list[Offer[Storage]]:
    """The one offer.

    PERSISTENT is not claimed: pages outlive the processes that hold them only where segments are offloaded to disk.
    """
    provides = frozenset(
        {
            Capability.ZERO_COPY,
            Capability.SHARED,
            Capability.EVICTS,
            Capability.DELETES,
            Capability.LISTS,
            Capability.APART,
        }
    )
    return [Offer("mooncake", make, MooncakeConfig, missing, provides, native)]


@hookimpl
def stepwell_commands() -> Iterable[click.Command]:
    """`stepwell mooncake segment`."""
    from stepwell_mooncake.commands import segment

    return [segment]


@hookimpl
def stepwell_checks() -> list[Check]:
    """Whether the client that is installed loads on this machine."""
    return [Check("client", finding)]
