"""How many tokens each expert gets, the last passes counting most."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stepwell import ExpertLoad

Counts = npt.NDArray[np.int64]


class Recorder:
    """Sums counts of passes; after `half_life` further passes a pass counts half.

    Passes in which no expert got a token are none: a server that idles forgets nothing.
    """

    def __init__(self, layers: int, experts: int, half_life: float) -> None:
        if not half_life > 0:
            raise ValueError(f"half_life: {half_life} passes; give more than 0, or inf to forget nothing")
        self._sums = np.zeros((layers, experts))
        self._keep = 0.5 ** (1 / half_life)
        self.passes = 0
        """Passes that had tokens."""
        self.since = 0
        """Those after the last `planned`."""

    def add(self, counts: Counts, passes: int = 1) -> None:
        """The counts [layers, experts] of one pass, or the sums of several that ended together; over all ranks.

        ValueError, and nothing is counted, where the shape is another or a count is below 0.
        """
        if counts.shape != self._sums.shape or not np.issubdtype(counts.dtype, np.integer):
            raise ValueError(
                f"counts are whole numbers {list(self._sums.shape)}, not {counts.dtype} {list(counts.shape)}"
            )
        if counts.min(initial=0) < 0:
            raise ValueError(f"a count of {counts.min()} tokens")
        if passes < 1 or not counts.any():
            return
        self._sums *= self._keep**passes
        self._sums += counts
        self.passes += passes
        self.since += passes

    def planned(self) -> None:
        """A plan was made of what has been counted; `since` begins anew."""
        self.since = 0

    def load(self) -> ExpertLoad:
        """[layers, experts]: whole tokens, 0 or more. Equal on ranks that added equal counts."""
        return np.rint(self._sums).astype(np.int64)
