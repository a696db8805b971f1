"""What a runner has to do with those of other groups: meets them, agrees on steps, is called into theirs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlparse

from stepwell import Context
from stepwell_kernels.collective import TorchGroup
from stepwell_transformers.together.bells import Bells
from stepwell_transformers.together.inbox import Inbox
from stepwell_transformers.together.rounds import Rounds
from stepwell_transformers.twobatch.decide import Size

T = TypeVar("T")

PATIENCE_S = 60.0
"""Longer than any step, and than what one group takes longer than another to get ready."""


class Together:
    """Of one runner, on the thread that computes; `close` on any."""

    def __init__(self, context: Context, log: logging.Logger) -> None:
        """Meet the runners of all groups, at a file of this machine."""
        folder = Path(f"{urlparse(context.commons).path}-bells")
        folder.mkdir(mode=0o700, exist_ok=True)
        self._bells = Bells(folder, context.group, context.groups, PATIENCE_S)
        self._group = TorchGroup.join(context.commons, context.group, context.groups, "cpu", PATIENCE_S, name="rounds")
        self._rounds = Rounds(self._group, self._bells)
        log.info("group %d of %d computes steps together with the others", context.group, context.groups)

    def inbox(self, idle: Callable[[Size], None]) -> Inbox[T]:
        """A queue of steps in which calls of other groups come, too; `idle` takes part in a step that is theirs."""

        def take_part(call: bool) -> None:
            agreed = self._rounds.take_part(0, prefill=False, call=call)
            if agreed.most:
                idle(Size(agreed.least, agreed.most, agreed.prefill))

        inbox: Inbox[T] = Inbox(self._rounds, take_part)
        self._bells.listen(inbox.knock)
        return inbox

    def agree(self, own: Size) -> Size:
        """Call all others into a step of this group's; what it is of all of them together. PeerLost."""
        agreed = self._rounds.take_part(own.most, prefill=own.prefill)
        return Size(agreed.least, agreed.most, agreed.prefill)

    def least(self, number: int) -> int:
        """The least that any group says, within a step."""
        return self._group.least(number)[0]

    def close(self) -> None:
        """Leave."""
        self._bells.close()
        self._group.close()
