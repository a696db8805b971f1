"""What the ranks of one model exchange: sums, concatenations, numbers that all keep to."""

from stepwell_kernels.collective.group import Group, Moving, Solo
from stepwell_kernels.collective.join import join
from stepwell_kernels.collective.threads import thread_groups
from stepwell_kernels.collective.torch_group import TorchGroup

__all__ = ["Group", "Moving", "Solo", "TorchGroup", "join", "thread_groups"]
