"""A window every so many tokens: wherever a prompt parts from an earlier one, no more than that is computed again.

It pays where prompts part at places that nobody could foretell, and where windows are small against the distance: 128
tokens every 2,048 are a sixteenth of what full attention would take, 1,024 are half of it. The distance is counted from
the start of the prompt, so paths that share a beginning share its windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stepwell import Context, RetentionPolicy
from stepwell.builtin.retain import Tail


@dataclass(frozen=True, slots=True)
class EveryNConfig:
    """The `[retain]` table when `use = "every-n"`."""

    tokens: int = 2048
    """Distance between windows, rounded up to whole pages."""

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise ValueError(f"tokens: {self.tokens} is less than 1")


class EveryN(RetentionPolicy):
    """Keeps a window every `tokens` tokens, and at the end what `tail` keeps."""

    def __init__(self, config: EveryNConfig, context: Context | None) -> None:
        self._tokens = config.tokens
        self._tail = Tail()

    def keep(self, length: int, page: int, branches: Sequence[int]) -> Sequence[int]:
        return self._tail.keep(length, page, branches)

    def along(self, start: int, end: int, page: int, branches: Sequence[int]) -> Sequence[int]:
        # Up, not down: a pool that was sized for one window in so many tokens is never asked for more.
        apart = -(-self._tokens // page) * page
        return range(start // apart * apart + apart, end + 1, apart)
