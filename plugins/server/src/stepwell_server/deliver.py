"""Getting an answer to its client, and noticing when the client is gone.

A client that leaves, or takes nothing for too long, ends the work: closing the answer's generator aborts its requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from stepwell_server.errors import ApiError, failed

T = TypeVar("T")

DONE = b"data: [DONE]\n\n"
PING = b": waiting\n\n"
GONE = 499
"""Status of requests whose client left, in logs and metrics; nobody receives it."""

HEADERS = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache", "x-accel-buffering": "no"}


class ClientGone(Exception):
    """The client left before its answer began."""


def watch(receive: Receive) -> asyncio.Task[None]:
    """A task that ends when the client is gone; the request's body must have been read."""

    async def until_gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    return asyncio.create_task(until_gone())


async def unless_gone(work: Coroutine[Any, Any, T], receive: Receive) -> T:
    """Do the work; cancel it and raise ClientGone when the client leaves."""
    gone, task = watch(receive), asyncio.create_task(work)
    try:
        await asyncio.wait({gone, task}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        await end(gone)
        await end(task)


async def end(task: asyncio.Task[Any]) -> None:
    """Cancel a task and wait until it has cleaned up."""
    task.cancel()
    await asyncio.wait({task})


class EventStream(Response):
    """Server-sent events out of a generator, whose first item is being awaited already."""

    def __init__(
        self,
        items: AsyncGenerator[bytes, None],
        first: asyncio.Task[bytes | None],
        *,
        ping_s: float,
        stuck_s: float,
        failed: Callable[[ApiError], None],
        gone: Callable[[], None],
    ) -> None:
        super().__init__(status_code=200, headers=HEADERS)
        del self.headers["content-length"]
        self._items, self._first = items, first
        self._ping_s, self._stuck_s = ping_s, stuck_s
        self._failed, self._gone = failed, gone
        self._sent = 0.0
        self._over = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        tasks = {asyncio.create_task(self._pump(send)), watch(receive)}
        ping = asyncio.create_task(self._ping(send))
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if not any(task.result() for task in done):
                self._gone()
        finally:
            for task in (*tasks, ping, self._first):
                await end(task)
            await self._items.aclose()

    async def _pump(self, send: Send) -> bool:
        """Send everything; False where the client is gone."""
        loop = asyncio.get_running_loop()
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for event in self._events():
                async with asyncio.timeout(self._stuck_s):
                    await send({"type": "http.response.body", "body": event, "more_body": True})
                self._sent = loop.time()
            self._over = True
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except (TimeoutError, OSError):
            return False
        return True

    async def _events(self) -> AsyncGenerator[bytes, None]:
        try:
            item = await self._first
            while item is not None:
                yield b"data: %b\n\n" % item
                item = await anext(self._items, None)
            yield DONE
        except ApiError as error:
            self._failed(error)
            yield b"data: %b\n\n" % error.body
        except Exception as error:
            self._failed(failed(f"{type(error).__name__} in the server"))
            yield b"data: %b\n\n" % failed("the server failed while it answered").body
            raise

    async def _ping(self, send: Send) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._ping_s)
            if loop.time() - self._sent >= self._ping_s and not self._over:
                with suppress(OSError):
                    await send({"type": "http.response.body", "body": PING, "more_body": True})


async def begin(items: AsyncGenerator[bytes, None], receive: Receive, patience_s: float) -> asyncio.Task[bytes | None]:
    """Wait a while for the first item, so that a request that is refused gets a status instead of a stream."""
    first: asyncio.Task[bytes | None] = asyncio.create_task(_next(items))
    gone = watch(receive)
    try:
        await asyncio.wait({gone, first}, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
        if gone.done() and not first.done():
            raise ClientGone
        if first.done():
            first.result()
        return first
    except BaseException:
        await end(first)
        await items.aclose()
        raise
    finally:
        await end(gone)


async def _next(items: AsyncGenerator[bytes, None]) -> bytes | None:
    return await anext(items, None)
