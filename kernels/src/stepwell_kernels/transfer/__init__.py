"""Copies of pages at the link's speed: kernels, copy engines, and the rule that chooses between them."""

from stepwell_kernels.transfer.make import Method, make_mover, make_movers
from stepwell_kernels.transfer.mover import Mover, Pairs, Way, stages

__all__ = ["Method", "Mover", "Pairs", "Way", "make_mover", "make_movers", "stages"]
