"""Longest-prefix-match scheduling: `[schedule] use = "lpm"`."""

from collections.abc import Iterable

from stepwell import Offer, SchedulePolicy, hookimpl
from stepwell_lpm.lpm import Lpm, LpmConfig


@hookimpl
def stepwell_schedulers() -> Iterable[Offer[SchedulePolicy]]:
    """Most cached tokens first."""
    return [Offer("lpm", Lpm, LpmConfig)]
