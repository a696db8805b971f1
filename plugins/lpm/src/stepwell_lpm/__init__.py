"""Orders that look at the cache: `[schedule] use = "lpm"`, `"dfs-weight"` or `"shortest-prefill-first"`."""

from collections.abc import Iterable

from stepwell import Offer, SchedulePolicy, hookimpl
from stepwell_lpm.dfs_weight import DfsWeight, DfsWeightConfig
from stepwell_lpm.lpm import Lpm, LpmConfig
from stepwell_lpm.shortest import ShortestPrefillFirst, ShortestPrefillFirstConfig


@hookimpl
def stepwell_schedulers() -> Iterable[Offer[SchedulePolicy]]:
    """Most cached tokens, heaviest branch, or fewest uncached tokens first."""
    return [
        Offer("lpm", Lpm, LpmConfig),
        Offer("dfs-weight", DfsWeight, DfsWeightConfig),
        Offer("shortest-prefill-first", ShortestPrefillFirst, ShortestPrefillFirstConfig),
    ]
