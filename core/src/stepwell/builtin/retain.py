"""Which windows stay: the one at the end of what a request published."""

from __future__ import annotations

from collections.abc import Sequence

from stepwell.abc.retain import RetentionPolicy
from stepwell.offers import Context, NoConfig


class Tail(RetentionPolicy):
    """The last page multiple and, where the request ended on it, one page below, for the same prompt again."""

    def __init__(self, config: NoConfig | None = None, context: Context | None = None) -> None:
        pass

    def keep(self, length: int, page: int, branches: Sequence[int]) -> Sequence[int]:
        end = length // page * page
        if end == length and end > page:
            return (end - page, end)
        return (end,) if end else ()
