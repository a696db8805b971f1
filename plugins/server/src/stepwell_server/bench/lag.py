"""How late an event loop is: what it does besides can make a client look like a slow server."""

from __future__ import annotations

import asyncio
import time
from types import TracebackType
from typing import Self

EVERY_S = 0.005
TIMER_S = 0.001
"""Timers of the event loop are that coarse, which is no lateness of the client."""


class Lag:
    """Looks every few milliseconds how much later than it should it is, for as long as the block lasts."""

    def __init__(self) -> None:
        self.late: list[float] = []
        self._task: asyncio.Task[None] | None = None
        self._begin = self._cpu = 0.0

    async def __aenter__(self) -> Self:
        self._begin, self._cpu = time.perf_counter(), time.process_time()
        self._task = asyncio.create_task(self._look())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def cpu_share(self) -> float:
        """Of one core, by this process since the block began."""
        return (time.process_time() - self._cpu) / max(1e-9, time.perf_counter() - self._begin)

    async def _look(self) -> None:
        while True:
            due = time.perf_counter() + EVERY_S
            await asyncio.sleep(EVERY_S)
            self.late.append(max(0.0, time.perf_counter() - due - TIMER_S))
