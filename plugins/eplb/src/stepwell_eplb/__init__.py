"""Expert balancers: `[runner] balance = "deepseek"` or `"incremental"`, and `stepwell eplb`."""

from collections.abc import Iterable

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
