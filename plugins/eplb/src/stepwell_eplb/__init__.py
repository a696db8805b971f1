"""Expert balancers: `[runner] balance = "deepseek"` or `"incremental"`, and `stepwell eplb`."""

from collections.abc import Iterable

import click

from stepwell import Balancer, Offer, hookimpl
from stepwell_eplb.deepseek import Deepseek, DeepseekConfig
from stepwell_eplb.incremental import Incremental, IncrementalConfig
from stepwell_eplb.rebalance import balanced_packing, rebalance_experts, replicate_experts

__all__ = [
    "Deepseek",
    "DeepseekConfig",
    "Incremental",
    "IncrementalConfig",
    "balanced_packing",
    "rebalance_experts",
    "replicate_experts",
]


@hookimpl
def stepwell_balancers() -> Iterable[Offer[Balancer]]:
    """Everything anew, or what helps most for few moves."""
    return [Offer("deepseek", Deepseek, DeepseekConfig), Offer("incremental", Incremental, IncrementalConfig)]


@hookimpl
def stepwell_commands() -> Iterable[click.Command]:
    """`stepwell eplb plan` and `stepwell eplb simulate`."""
    from stepwell_eplb.cli.plan import plan
    from stepwell_eplb.cli.simulate import simulate

    return [plan, simulate]


@hookimpl
def stepwell_benches() -> Iterable[click.Command]:
    """`stepwell bench eplb`."""
    from stepwell_eplb.bench.command import eplb

    return [eplb]
