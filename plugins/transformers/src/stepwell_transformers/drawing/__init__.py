"""Sampling on the device: tokens go to the next step without the host having seen them.

The draws are those of `stepwell_transformers.sampling`, which is the reference and what a CPU does. What differs is
where things are: the host knows how many tokens each request has, though not which, so it sends numbers and settings
ahead; counts for penalties stay on the device and are moved on in stream order; results go to pinned memory behind the
step. Nothing here synchronises.
"""

from stepwell_transformers.drawing.drawer import Drawer, greedy
from stepwell_transformers.drawing.drawn import Drawn

__all__ = ["Drawer", "Drawn", "greedy"]
