"""The plugin that offers the `file` storage."""

from __future__ import annotations

import sys

from stepwell import Capability, Context, Offer, Storage, hookimpl
from stepwell_file.config import FileConfig

PROVIDES = frozenset(
    {
        *(Capability.ZERO_COPY, Capability.PERSISTENT, Capability.SHARED),
        *(Capability.EVICTS, Capability.DELETES, Capability.LISTS, Capability.CHECKS),
    }
)


def make(config: FileConfig, context: Context) -> Storage:
    """The store; its module is imported only where it is used."""
    from stepwell_file.store import FileStorage

    return FileStorage(config, context)


def _missing() -> str | None:
    return None if sys.platform == "linux" else "it needs Linux: flock, fallocate and vectored I/O at an offset"


@hookimpl
def stepwell_storages() -> list[Offer[Storage]]:
    """The one offer."""
    return [Offer("file", make, FileConfig, _missing, PROVIDES)]
