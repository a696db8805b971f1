"""The window at the end of each prompt: where another answer would go on.

It pays where a prompt comes again, or the next turn does not hold the last answer word for word: a chat template that
leaves reasoning out, text that is tokenised anew. It costs as many tokens of windows a request as its answer is long,
and no more than a window.
"""

from __future__ import annotations

from collections.abc import Sequence

from stepwell import Context, NoConfig, RetentionPolicy
from stepwell.builtin.retain import Tail


class PromptEnds(RetentionPolicy):
    """Keeps the window at the end of a prompt, and at the end of its answer what `tail` keeps."""

    def __init__(self, config: NoConfig | None = None, context: Context | None = None) -> None:
        self._tail = Tail()

    def keep(self, length: int, page: int, branches: Sequence[int]) -> Sequence[int]:
        return self._tail.keep(length, page, branches)

    def prompted(self, length: int, page: int) -> Sequence[int]:
        end = (length - 1) // page * page
        return (end,) if end > 0 else ()
