"""How a product of few tokens is cut into programs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Plan:
    """One way to run a product; every way answers the same but for rounding, whatever the timing."""

    rows: int
    """Outputs of a tile; of a gated product as many gates and as many ups."""
    cols: int
    """Inputs of a step."""
    stages: int
    """Steps in flight."""
    warps: int
    tokens: int = 0
    """Tokens that a tile is padded to; 0: the sums of one or two tokens, without tensor cores."""
    split: int = 1
    """Parts of the inputs, each a program's, summed afterwards in their order."""
    across: bool = True
    """Whether weights are the left side of the product, so that few tokens waste little of it."""
    prefetch: int = 0
    """Bytes of each row that are fetched into L2 before the kernel waits for the one before it."""

    @property
    def norms(self) -> bool:
        """Whether the norm of its input is done on the way: a split product would have to pass on its squares."""
        return self.split == 1


def planned(tokens: int, rows: int, cols: int, gated: bool) -> Plan | None:
    """The plan for a product, None where torch's is as fast."""
    return None
