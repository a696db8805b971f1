"""A request as the brain gets it, and as it keeps it."""

from __future__ import annotations

import msgspec

from stepwell.types import Sampling


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What a front end asks for; travels between processes whole. `tokens`: int32 bytes."""

    rid: str
    namespace: bytes
    tokens: bytes
    digests: bytes = b""
    """Digests of the whole pages of `tokens`, 32 bytes each, where the front end computed them."""
    sampling: Sampling = Sampling()
    priority: int = 0
    store: bool = True
    """Whether its pages may be kept for others (and itself, later)."""
    ttl: float | None = None
    """Seconds after its end for which its pages are kept if nobody else uses them."""
    routing_key: str | None = None
    tenant: str | None = None
