"""The plugin that offers the `3fs` storage."""

from __future__ import annotations

import sys

from stepwell import ArenaView, Capability, Context, Native, Offer, Storage, hookimpl
from stepwell_threefs.config import ThreefsConfig


def make(config: ThreefsConfig, context: Context) -> Storage:
    """The store; its module is imported only where it is used."""
    from stepwell_threefs.store import ThreefsStorage

    return ThreefsStorage(config, context)


def make_native(config: ThreefsConfig, context: Context, arena: ArenaView) -> Native:
    """USRBIO alone, or plain system calls where there is none."""
    from stepwell_threefs.alone import ThreefsNative

    return ThreefsNative(config, context, arena)


def _missing() -> str | None:
    return None if sys.platform == "linux" else "it needs Linux: /dev/shm and vectored I/O at an offset"


PROVIDES = frozenset(
    {
        Capability.ZERO_COPY,
        Capability.PERSISTENT,
        Capability.SHARED,
        Capability.EVICTS,
        Capability.DELETES,
        Capability.LISTS,
        Capability.CHECKS,
        Capability.NAMED_MEMORY,
    }
)


@hookimpl
def stepwell_storages() -> list[Offer[Storage]]:
    """The one offer."""
    return [Offer("3fs", make, ThreefsConfig, _missing, PROVIDES, make_native)]
