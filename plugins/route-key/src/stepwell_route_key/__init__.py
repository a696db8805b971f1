"""Requests with one routing key run together: `[schedule] use = "route-key"`."""

from collections.abc import Iterable

from stepwell import Offer, SchedulePolicy, hookimpl
from stepwell_route_key.route_key import RouteKey, RouteKeyConfig


@hookimpl
def stepwell_schedulers() -> Iterable[Offer[SchedulePolicy]]:
    """Keys that run go first."""
    return [Offer("route-key", RouteKey, RouteKeyConfig)]
