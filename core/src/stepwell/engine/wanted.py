"""A storage that an engine is without and should have: why, and when it is tried again."""

from __future__ import annotations

from dataclasses import dataclass

from stepwell.engine.parts import StorageInfo

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0


@dataclass(eq=False)
class Wanted:
    """Owned by the serving thread; one attempt at a time."""

    info: StorageInfo
    why: str
    """How the last attempt failed."""
    at: float
    """When the next one is due."""
    pause_s: float = FIRST_PAUSE_S
    """Between the last attempt and the next."""
    attempts: int = 1
    trying: bool = False

    def due(self, now: float) -> bool:
        """Whether to try now."""
        return not self.trying and now >= self.at

    def begin(self) -> None:
        """An attempt is under way."""
        self.trying = True
        self.attempts += 1

    def failed(self, now: float, why: str) -> None:
        """Nothing came of an attempt; the next one is further off."""
        self.why = why
        self.pause_s = min(2 * self.pause_s, LONGEST_PAUSE_S)
        self.put_off(now)

    def put_off(self, now: float) -> None:
        """No attempt is under way; have one after the pause."""
        self.trying = False
        self.at = now + self.pause_s

    def shown(self) -> dict[str, object]:
        """For people to read."""
        return {"wanted": self.info.use, "why": self.why, "attempts": self.attempts}
