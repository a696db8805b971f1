"""Rounds: each group takes part in every step that any of them computes, with nothing where it has nothing to compute.

A group that has a step rings the others and goes into the next round; one that is idle is called into it. All of them
come to agree on what the step's exchanges look like, so no exchange waits for somebody who does not come:

group 0   | step, 9 tokens | step, 1 token  |                | step, 1 token
group 1   | called: 0      | step, 4 tokens | step, 4 tokens | called: 0
round     | 0              | 1              | 2              | 3
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from stepwell import PeerLost
from stepwell_kernels.collective import Group
from stepwell_transformers.load import line


class Caller(Protocol):
    """Bells, or what stands for them."""

    def ring(self, number: int) -> None:
        """Call all others into a round."""


@dataclass(frozen=True, slots=True)
class Agreed:
    """What all groups know of a round."""

    least: int
    """Tokens of the group that brings fewest, and of the one that brings most."""
    most: int
    prefill: bool
    """Whether any of them computes prompts."""
    ending: bool
    """Whether all of them want to end: this was the last round."""


class Rounds:
    """One group's part in them; on the thread that computes."""

    def __init__(self, group: Group, bells: Caller) -> None:
        """`group`: of all of them, on the host."""
        self._group, self._bells = group, bells
        self.next = 0
        """The round that this group has not taken part in yet."""
        self.ending = False
        """Whether this group will compute nothing more by itself."""
        self.over = False
        """Whether all groups have said so."""

    def take_part(self, tokens: int, *, prefill: bool, call: bool = True) -> Agreed:
        """Go into the next round with so many tokens. `call`: none of the others may know of it yet.

        PeerLost where one of them is gone.
        """
        if call:
            self._bells.ring(self.next)
        try:
            least, most, prompts, ending = self._group.least(tokens, -tokens, -int(prefill), int(self.ending))
        except RuntimeError as error:
            raise PeerLost(f"another group is gone or does not answer ({line(error)})") from error
        self.next += 1
        self.over = bool(ending)
        return Agreed(least, -most, prompts < 0, bool(ending))
