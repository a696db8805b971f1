"""Retention policies beyond `tail`: `[retain] use = "branch-points"`, `"prompt-ends"`, `"every-n"` or `"all"`."""

from collections.abc import Iterable

from stepwell import Offer, RetentionPolicy, hookimpl
from stepwell_retention.branch_points import BranchPoints, BranchPointsConfig
from stepwell_retention.dense import All
from stepwell_retention.every_n import EveryN, EveryNConfig
from stepwell_retention.prompt_ends import PromptEnds


@hookimpl
def stepwell_retainers() -> Iterable[Offer[RetentionPolicy]]:
    """Each answers from its question alone, so one instance serves all requests."""
    return [
        Offer("branch-points", BranchPoints, BranchPointsConfig),
        Offer("prompt-ends", PromptEnds),
        Offer("every-n", EveryN, EveryNConfig),
        Offer("all", All),
    ]
