"""Routed experts spread over ranks: each rank has some of them, and tokens travel.

A layer goes from its router's choice to slots, to the ranks that have them, through grouped products, and back. It is
put in through the ExpertsInterface of the transformers library, so that a model's own code runs around it.
"""

from stepwell_transformers.experts.settings import ExpertsSettings
from stepwell_transformers.experts.told import Told

__all__ = ["ExpertsSettings", "Told"]
