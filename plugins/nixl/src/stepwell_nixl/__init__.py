"""The plugin that offers NIXL as storage: `nixl` (a folder), `nixl-obj`, `nixl-ucx` and `nixl-gds`."""

from __future__ import annotations

from stepwell import Capability, Context, Offer, Storage, hookimpl
from stepwell_nixl import client
from stepwell_nixl.config import NixlConfig

FOLDER = frozenset(
    {
        Capability.ZERO_COPY,
        Capability.PERSISTENT,
        Capability.SHARED,
        Capability.EVICTS,
        Capability.DELETES,
        Capability.LISTS,
    }
)


def make(config: NixlConfig, context: Context) -> Storage:
    """A folder through NIXL's POSIX backend."""
    from stepwell_nixl.files import FileStorage

    params = {f"use_{config.engine}": "true"}
    return FileStorage(config, context, "POSIX", params, config.direct, f"engine = {config.engine!r}")


@hookimpl
def stepwell_storages() -> list[Offer[Storage]]:
    """One offer a NIXL backend."""
    return [Offer("nixl", make, NixlConfig, client.missing, FOLDER)]
