"""One rank as the brain sees it: what was said to it, what it owes, when it was heard, and how it ended."""

from __future__ import annotations

import subprocess
import threading
from collections import deque
from contextlib import suppress

from stepwell.engine.ranks.combine import Expected
from stepwell.engine.ranks.wire import Nonsense, Result, Stream, Word, saved
from stepwell.engine.ranks.wire import result as result_of
from stepwell.engine.spawned import error_of
from stepwell.engine.supervise import ending
from stepwell.errors import ConfigError, PluginError

SLOW_BEATS_S = 1.5
"""A rank that has not been heard for so long is the one to blame."""

KILL_S = 10.0
"""How long to wait for the system to end a process that was killed; a device may hold it."""


class Link:
    """One rank. `say` on the brain's thread, `heard` on the one that hears."""

    def __init__(
        self, rank: int, stream: Stream, process: subprocess.Popen[bytes] | None, where: str, now: float
    ) -> None:
        self.rank, self.stream, self._process = rank, stream, process
        self.where = where
        """Its pid, and its host where that is another."""
        self.owed: deque[tuple[Expected, float]] = deque()
        """Plans that it has not answered, and when each was sent."""
        self.answers: deque[Result] = deque()
        """What it answered and not all others have."""
        self.saves: dict[int, int] = {}
        """Late saves that have not ended, and their pages."""
        self.saved_at = now
        self.free_at = now
        """When it answered last: from then it could do the next."""
        self.heard_at = now
        self._killing = threading.Lock()

    @property
    def name(self) -> str:
        """As messages name it."""
        return f"rank {self.rank} ({self.where})"

    def expect(self, expected: Expected, late_saves: bool, now: float) -> None:
        """A plan is about to be sent."""
        self.owed.append((expected, now))
        if late_saves:
            mine = {id: pages for id, (pages, who) in expected.saves.items() if self.rank in who}
            if mine and not self.saves:
                self.saved_at = now
            self.saves.update(mine)

    def result(self, body: bytes, now: float) -> None:
        """It answered a plan. Raises Nonsense."""
        if not self.owed:
            raise Nonsense("an answer to nothing")
        answer = result_of(body)
        self.owed[0][0].check(answer, self.rank)
        self.owed.popleft()
        self.free_at = now
        self.answers.append(answer)

    def saved(self, body: bytes, now: float) -> dict[int, bytes]:
        """Late saves that ended. Raises Nonsense."""
        ended = saved(body)
        for id, pages in ended.items():
            wanted = self.saves.pop(id, -1)
            if wanted != len(pages):
                raise Nonsense(f"{len(pages)} pages of save {id}, which has {wanted}")
        self.saved_at = now
        return ended

    def silent_s(self, now: float) -> float:
        """Seconds since it was heard last."""
        return now - self.heard_at

    def overdue(self, now: float, timeout_s: float) -> str:
        """What it has not done in time; empty where all is well."""
        if self.owed:
            expected, sent = self.owed[0]
            if now - max(sent, self.free_at) > timeout_s * expected.horizon:
                return f"did not answer step {expected.number} within {timeout_s * expected.horizon:g} s"
        # A save may wait for the step that it came with.
        since, limit_s = (self.saved_at, 2 * timeout_s) if self.owed else (max(self.saved_at, self.free_at), timeout_s)
        if self.saves and now - since > limit_s:
            return f"did not end a save within {limit_s:g} s"
        return ""

    def at(self) -> str:
        """What it was in, for messages."""
        return f" in step {self.owed[0][0].number}" if self.owed else ""

    def gone(self) -> str:
        """How it ended; it is killed where it has not."""
        if self._process is None:
            return "was lost: its connection ended"
        with suppress(subprocess.TimeoutExpired):  # its socket closes before its process has ended
            return ending(self._process.wait(1.0))
        return self.kill()

    def kill(self) -> str:
        """End it, wait until it has, and say how it ended."""
        if self._process is None:
            self.stream.close()
            return "was let go"
        with self._killing:
            self._process.kill()
            try:
                return ending(self._process.wait(KILL_S))
            except subprocess.TimeoutExpired:
                return "was killed, and the system does not let it go"

    @property
    def remote(self) -> bool:
        """Whether somebody else started it."""
        return self._process is None

    @property
    def dead(self) -> bool:
        """Whether its process has ended."""
        return self._process is not None and self._process.poll() is not None


def complaint_of(body: bytes) -> Exception:
    """Why a rank says that it ended."""
    try:
        return error_of(body, PluginError)
    except Exception:
        return Nonsense("words that cannot be read")


def failure(link: Link, error: Exception) -> Exception:
    """What a rank says of its end, as the engine says it."""
    if isinstance(error, ConfigError):
        return ConfigError(f"rank {link.rank}: {error}")
    return PluginError(f"{link.name} failed{link.at()}: {error}")


def last_words(link: Link) -> Exception:
    """Why a rank is gone whose connection has ended: what it said last, or how it ended."""
    with suppress(EOFError, OSError, Nonsense):
        while True:
            for word, body in link.stream.hear():
                if word == Word.FAILED:
                    return failure(link, complaint_of(body))
    return PluginError(f"{link.name} {link.gone()} before it was ready")


def hear(link: Link) -> list[tuple[int, bytes]]:
    """All messages that have come. EOFError, OSError or Nonsense where there will be no further ones."""
    return [(word, body) for word, body in link.stream.hear(wait=False) if body or word != Word.BEAT]
