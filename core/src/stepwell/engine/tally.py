"""What is counted apart from plain numbers: a histogram of queue times, and what each routing key or tenant had.

Names come from clients, so there are only so many of them, only so long; whoever comes later is counted with "other".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from stepwell.schedule.job import Job

KINDS = ("routing_key", "tenant")
"""What `[engine] count_by` may name."""
QUEUE_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0, 120.0, 300.0)
"""Upper bounds of the queue-time histogram, in seconds; what is longer is in one more bucket."""
NAMES = 64
"""Names of a kind that are counted by themselves: the first that come."""
NAME_CHARS = 64
"""Characters of a name that count; longer ones are cut, and end with an ellipsis."""
OTHER = "other"


class Waits(msgspec.Struct, frozen=True):
    """Queue times as a histogram: requests in each bucket of `QUEUE_S` and beyond, and the sum of their seconds."""

    counts: tuple[int, ...] = (0,) * (len(QUEUE_S) + 1)
    seconds: float = 0.0

    @property
    def count(self) -> int:
        """Requests in all buckets."""
        return sum(self.counts)


class Row:
    """What the requests of one name had."""

    __slots__ = (
        "admissions",
        "generated_tokens",
        "prompt_tokens",
        "queue_seconds",
        "requests",
        "retractions",
        "running",
        "skips",
        "waiting",
    )

    def __init__(self) -> None:
        self.requests = self.waiting = self.running = 0
        self.admissions = self.retractions = self.skips = 0
        self.prompt_tokens = self.generated_tokens = 0
        self.queue_seconds = 0.0


class Tally:
    """A row for each name of each kind asked for."""

    def __init__(self, kinds: Sequence[str]) -> None:
        self._rows: dict[str, dict[str, Row]] = {kind: {} for kind in kinds}

    def of(self, job: Job) -> list[Row]:
        """The rows that a job is counted in."""
        found = []
        for kind, rows in self._rows.items():
            name = job.routing_key if kind == "routing_key" else job.tenant
            if name is not None:
                found.append(rows.get(name) or self._row(rows, name))
        return found

    def values(self) -> dict[str, dict[str, dict[str, float]]]:
        """Numbers by kind, name, and what was counted."""
        return {
            kind: {name: {what: getattr(row, what) for what in Row.__slots__} for name, row in rows.items()}
            for kind, rows in self._rows.items()
        }

    def _row(self, rows: dict[str, Row], name: str) -> Row:
        """The row of a name that has none under exactly this spelling."""
        shown = shorten(name)
        if shown not in rows and len(rows) - (OTHER in rows) >= NAMES:
            shown = OTHER
        return rows.setdefault(shown, Row())


def shorten(text: str, most: int = NAME_CHARS) -> str:
    """A text as it is counted and shown: of bounded length, and such that it can be written as UTF-8."""
    text = text[: most + 1].encode("utf-8", "replace").decode()
    return text if len(text) <= most else text[: most - 1] + "…"
