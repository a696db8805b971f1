"""Core's own parts, registered through the same hooks as anybody's."""

from collections.abc import Iterable
from typing import Any

from stepwell.markers import hookimpl
from stepwell.offers import Offer


@hookimpl
def stepwell_evictors() -> Iterable[Offer[Any]]:
    """None yet."""
    return ()
