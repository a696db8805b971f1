"""Which steps hold decode rows and which hold prompts, where a site wants them apart.

By default every step holds both. One of the two may be held back for a few steps while the other goes on, never for
more than its setting says, and never where the other has nothing to compute.
"""

from __future__ import annotations

from stepwell.schedule.plan import Draft

LONG = 1 << 30


class Turns:
    """`prefill_every`: prompts go into every so-manieth step while anything decodes; `decode_every`: the reverse."""

    def __init__(self, prefill_every: int, decode_every: int) -> None:
        self._prefill_every = prefill_every
        self._decode_every = decode_every
        self._since_prompts = self._since_rows = LONG
        """Steps since there were prompts, and since there were decode rows."""

    def rows(self, *, prompts: bool) -> bool:
        """Whether decode rows go into the next step; `prompts`: there are some under way."""
        return not prompts or self._since_rows + 1 >= self._decode_every

    def prompts(self, *, rows: bool) -> bool:
        """Whether prompts go into the next step; `rows`: it decodes."""
        return not rows or self._since_prompts + 1 >= self._prefill_every

    def launched(self, draft: Draft, horizon: int) -> None:
        """A step was launched."""
        self._since_rows = 0 if draft.decodes else self._since_rows + horizon
        self._since_prompts = 0 if draft.chunks else self._since_prompts + horizon
