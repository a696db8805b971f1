"""How even a placement is for given counts."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stepwell import Placement
from stepwell_eplb.greedy import Ints
from stepwell_eplb.rows import counts

Floats = npt.NDArray[np.float64]


def by_rank(load: Ints, placement: Placement, ranks: int) -> Floats:
    """[layers, ranks]: what each rank has to do, over what ranks have to do on average; 0 in a layer without tokens."""
    slots = placement.experts.astype(np.int64)
    share = load / np.maximum(counts(slots, load.shape[1]), 1)
    tokens = np.take_along_axis(share, slots, axis=1).reshape(len(load), ranks, -1).sum(axis=2)
    mean = tokens.mean(axis=1, keepdims=True)
    return np.divide(tokens, mean, out=np.zeros_like(tokens), where=mean > 0)


def unevenness(load: Ints, placement: Placement, ranks: int) -> Floats:
    """[layers]: the hottest rank over the mean; 1 at best, and in a layer without tokens."""
    return np.maximum(by_rank(load, placement, ranks).max(axis=1), 1.0)
