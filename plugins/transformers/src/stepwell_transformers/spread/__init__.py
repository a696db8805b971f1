"""A model spread over ranks: each has a part of every layer, cut as the model's own plan says, as plain weights.

No tensor of torch's distributed kind takes part in a forward: a linear that is cut is a linear of fewer features, so
that what fuses, captures and proves one rank's model does so with a part of it.
"""

from stepwell_transformers.spread.cut import Cut
from stepwell_transformers.spread.install import install
from stepwell_transformers.spread.plan import Plan, plan
from stepwell_transformers.spread.rows import CutLinear, GatherLinear, RowLinear

__all__ = ["Cut", "CutLinear", "GatherLinear", "Plan", "RowLinear", "install", "plan"]
