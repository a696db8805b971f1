"""Experts that change their places while they serve: planned and carried beside the steps, put into place between two.

compute   | step | step | step | vote | step | vote, put layers into place | step | ...
beside    |      | counts, plan       | carry the weights of some layers   | the next ones
"""

from stepwell_transformers.rebalance.assemble import rebalancing_of
from stepwell_transformers.rebalance.rebalancing import Rebalancing

__all__ = ["Rebalancing", "rebalancing_of"]
