"""The plugin that offers the `redis` storage."""

from __future__ import annotations

from importlib.util import find_spec

from stepwell import ArenaView, Capability, Context, Native, Offer, Storage, hookimpl
from stepwell_redis.config import RedisConfig


def make(config: RedisConfig, context: Context) -> Storage:
    """The store; the client is imported only where it is used."""
    from stepwell_redis.store import RedisStorage

    return RedisStorage(config, context)


def native(config: RedisConfig, context: Context, arena: ArenaView) -> Native:
    """The client library alone."""
    from stepwell_redis.alone import RedisNative

    return RedisNative(config)


def _missing() -> str | None:
    return None if find_spec("redis") else "its client is not installed: pip install 'redis>=6'"


@hookimpl
def stepwell_storages() -> list[Offer[Storage]]:
    """The one offer. Whether pages outlive the server is the server's business, so PERSISTENT is not claimed."""
    provides = frozenset(
        {Capability.ZERO_COPY, Capability.SHARED, Capability.EVICTS, Capability.DELETES, Capability.LISTS}
    )
    return [Offer("redis", make, RedisConfig, _missing, provides, native)]
