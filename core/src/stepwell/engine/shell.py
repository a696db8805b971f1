"""A running engine: the loop's thread, how it starts, and how it ends."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from stepwell.engine.loop import Loop, News, Said
from stepwell.engine.parts import Parts, release
from stepwell.errors import PluginError, StepwellError


class Shell:
    """A running engine. `post` and `stop` are for any thread; `deliver` is called on the loop's."""

    def __init__(
        self,
        build: Callable[[], Parts],
        deliver: Callable[[Sequence[Said]], None],
        *,
        ended: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`build()` puts the parts together, on the loop's thread, since a runner is used from one thread alone.

        `ended(why)` is called once, as the last thing, where the engine ends by a fault.
        """
        self._build, self._deliver, self._on_ended, self._clock = build, deliver, ended, clock
        self._log = logging.getLogger("stepwell.engine")
        self._inbox: deque[News] = deque()
        self._wake = threading.Event()
        self._started = threading.Event()
        self._startup_error: BaseException | None = None
        self._stop_by: float | None = None
        self._why = ""
        self._parts: Parts | None = None
        self._thread = threading.Thread(target=self._main, name="stepwell-engine", daemon=True)
        self.failed: str | None = None
        """Why the engine ended by itself."""

    def start(self) -> Parts:
        """Start, and wait until requests can be served. Raises what went wrong."""
        self._thread.start()
        while not self._started.wait(0.5):  # in pieces, so that Ctrl-C is heard
            pass
        if self._startup_error is not None:
            raise self._startup_error
        assert self._parts is not None
        return self._parts

    def post(self, *news: News) -> None:
        """Hand something to the loop."""
        self._inbox.extend(news)
        self._wake.set()

    def stop(self, why: str, *, drain_s: float | None = None) -> None:
        """End: refuse what comes, let what runs finish for `drain_s` (default: as configured), abort the rest."""
        if self._parts is not None:
            self._why = self._why or why
            self._stop_by = self._clock() + (self._parts.drain_s if drain_s is None else drain_s)
            self._wake.set()

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for the end; answers whether it came."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def running(self) -> bool:
        """Whether the loop turns."""
        return self._started.is_set() and self._thread.is_alive()

    # --- the thread --------------------------------------------------------------------------------------------

    def _main(self) -> None:
        try:
            self._parts = self._build()
            loop = Loop(self._parts, self._inbox, self._wake, self._deliver, self._clock)
        except BaseException as error:  # whoever started us raises it
            self._startup_error = error
            if self._parts is not None:
                release(self._parts)
            self._started.set()
            return
        self._started.set()
        try:
            while not loop.over(self._stop_by):
                loop.turn()
        except BaseException as error:  # a plugin that calls exit() on this thread is no reason to fall silent
            self.failed = self._sentence(error)
            self._log.error("%s", self.failed, exc_info=not isinstance(error, PluginError))
        try:
            loop.end(self._why or "the engine was stopped", self.failed)
        finally:
            if self.failed is not None and self._on_ended is not None:
                self._on_ended(self.failed)

    def _sentence(self, error: BaseException) -> str:
        if isinstance(error, StepwellError):
            return f"the engine ended: {error}"
        return f"the engine ended by a fault: {type(error).__name__}: {error}"
