"""Priorities with preemption, shares for tenants, response ratios: `[schedule] use = "fair"`."""

from collections.abc import Iterable

from stepwell import Offer, SchedulePolicy, hookimpl
from stepwell_fair.fair import FairConfig, fair


@hookimpl
def stepwell_schedulers() -> Iterable[Offer[SchedulePolicy]]:
    """Urgent first, then the tenant that has had least, then who waits long for little."""
    return [Offer("fair", fair, FairConfig)]
