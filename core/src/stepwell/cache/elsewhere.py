"""A host tier whose memory is not in this process: each rank has an arena of its own, with its parts of every slot."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from stepwell.cache.arena import Slotted, plan
from stepwell.types import GroupSpec


class Elsewhere(Slotted):
    """An ArenaView without bytes: where slots would lie if they lay in one place, and what ranks make theirs of."""

    fd = -1
    name = ""

    def __init__(
        self,
        groups: Sequence[GroupSpec],
        page_size: int,
        pages: Sequence[int],
        *,
        setting: str = "cache.host_pages",
        named: bool = False,
    ) -> None:
        """As `Arena.create`, which each rank does for itself."""
        super().__init__(memoryview(b""), 0, plan(groups, page_size, pages)[0])
        self.groups, self.page_size, self.pages = tuple(groups), page_size, tuple(pages)
        self.setting, self.named = setting, named

    def lending_name(self) -> AbstractContextManager[None]:
        """There is none to lend."""
        return nullcontext()

    def close(self) -> None:
        """Each rank gives its own memory back."""
