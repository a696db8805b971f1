"""The windows at which paths part: where one prompt left another, a third is likely to.

It pays where sessions branch off earlier turns, prompts share a long preamble, or several samples are drawn from one
context. The first request that leaves a path at a fresh place has to compute what lies before it again, back to the
longest length that is kept; on its way it leaves a window at that place, and whoever leaves there next finds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stepwell import Context, RetentionPolicy
from stepwell.builtin.retain import Tail
from stepwell_retention.prompt_ends import PromptEnds


@dataclass(frozen=True, slots=True)
class BranchPointsConfig:
    """The `[retain]` table when `use = "branch-points"`."""

    most: int = 32
    """Branch points that one path keeps, the deepest first."""
    prompts: bool = False
    """Also keep the window at the end of each prompt, as `prompt-ends` does."""

    def __post_init__(self) -> None:
        if self.most < 1:
            raise ValueError(f"most: {self.most} is less than 1; `tail` keeps none")


class BranchPoints(RetentionPolicy):
    """Keeps the windows at branch points, and at the end what `tail` keeps."""

    def __init__(self, config: BranchPointsConfig, context: Context | None) -> None:
        self._most = config.most
        self._ends = PromptEnds() if config.prompts else Tail()

    def keep(self, length: int, page: int, branches: Sequence[int]) -> Sequence[int]:
        return [*self._deepest(0, length, page, branches), *self._ends.keep(length, page, branches)]

    def along(self, start: int, end: int, page: int, branches: Sequence[int]) -> Sequence[int]:
        return self._deepest(start, end, page, branches)

    def prompted(self, length: int, page: int) -> Sequence[int]:
        return self._ends.prompted(length, page)

    def _deepest(self, start: int, end: int, page: int, branches: Sequence[int]) -> list[int]:
        """The last branch points above `start` and up to `end`."""
        return [at for branch in branches[-self._most :] if start < (at := branch // page * page) <= end]
