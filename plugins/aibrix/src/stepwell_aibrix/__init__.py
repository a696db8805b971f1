"""The plugin that offers AIBrix's connectors as the `aibrix` storage."""

from __future__ import annotations

from importlib.util import find_spec

from stepwell import ArenaView, Capability, Context, Native, Offer, Storage, hookimpl
from stepwell_aibrix.config import AibrixConfig


def make(config: AibrixConfig, context: Context) -> Storage:
    """The store; AIBrix and torch are imported only where it is used."""
    from stepwell_aibrix.store import AibrixStorage

    return AibrixStorage(config, context)


def native(config: AibrixConfig, context: Context, arena: ArenaView) -> Native:
    """The connector alone."""
    from stepwell_aibrix.bare import AibrixNative

    return AibrixNative(config, arena)


def _missing() -> str | None:
    if find_spec("aibrix_kvcache") is None:
        return "aibrix-kvcache is not installed: pip install aibrix-kvcache"
    return None


@hookimpl
def stepwell_storages() -> list[Offer[Storage]]:
    """The one offer; what it can do besides deleting depends on the connector, so its settings say so."""
    return [Offer("aibrix", make, AibrixConfig, _missing, frozenset({Capability.DELETES}), native)]
