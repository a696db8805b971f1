"""Two-batch overlap: a step's rows as two halves, one of which computes while the other's tokens are under way.

Each half runs the model's own forward in a greenlet of its own, and hands over where its experts wait:

half 1   | attention, dispatch |                     | experts, combine |                  | attention, dispatch |
half 2   |                     | attention, dispatch |                  | experts, combine |                     |
"""

from stepwell_transformers.twobatch.decide import Size, Way, decide
from stepwell_transformers.twobatch.overlap import Overlap, overlap_of
from stepwell_transformers.twobatch.pace import HostWatch
from stepwell_transformers.twobatch.split import Halves, split
from stepwell_transformers.twobatch.turns import Turns

__all__ = ["Halves", "HostWatch", "Overlap", "Size", "Turns", "Way", "decide", "overlap_of", "split"]
