"""One of AIBrix's connectors as a storage: its coroutines, a batch at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch
from aibrix_kvcache.l2.connectors.rocksdb import RocksDBConnector
from aibrix_kvcache.status import Status

from stepwell import DONE, MISSING, ArenaView, Context, Failed, PageKey, PageResult, PageViews, Storage, StoredPage
from stepwell_aibrix.config import AibrixConfig
from stepwell_aibrix.connectors import PREFIX, Region, connect, pages, reopen
from stepwell_aibrix.loop import LoopThread
from stepwell_aibrix.turnstile import Turnstile

CLOSE_S = 5.0
"""How long calls under way may take to return when the storage is closed."""

MEND_S = 1.0
"""Between two attempts to open a database again."""


class AibrixStorage(Storage):
    """Pages in whatever the connector talks to, under `stepwell/` and the page's key."""

    def __init__(self, config: AibrixConfig, context: Context) -> None:
        self._config = config
        self._executor = ThreadPoolExecutor(config.threads, thread_name_prefix="stepwell.aibrix")
        self._loop = LoopThread("stepwell.aibrix.loop")
        try:
            self._connector = connect(config, self._executor)
        except BaseException:
            self._end()
            raise
        self._slab: torch.Tensor | None = None
        self._start = 0
        self._turnstile = Turnstile()
        self._closed = False
        self._shut = False
        self._clock, self._mend_at = context.clock, 0.0

    def attach(self, arena: ArenaView) -> None:
        self._slab = torch.frombuffer(arena.memory, dtype=torch.uint8)
        self._start = arena.address
        if self._connector.feature.rdma:
            status = self._connector.register_slabs([self._slab])
            if not status.is_ok():
                raise RuntimeError(f"AIBrix cannot register the arena: {status.value}")

    def contains(self, keys: Sequence[PageKey]) -> list[bool]:
        exists = self._connector.exists

        async def ask() -> list[Status[object]]:
            return await asyncio.gather(*[exists(PREFIX + key) for key in keys])

        with self._among():
            return [status.is_ok() for status in self._loop.run(ask())]

    def read(self, keys: Sequence[PageKey], into: PageViews) -> list[PageResult]:
        return [_told(status) for status in self._move(self._connector.get, keys, into)]

    def write(self, keys: Sequence[PageKey], pages: PageViews) -> list[PageResult]:
        results = [_told(status) for status in self._move(self._connector.put, keys, pages)]
        if results and all(isinstance(result, Failed) for result in results):
            self._mend()
        return results

    def delete(self, keys: Sequence[PageKey]) -> None:
        delete = self._connector.delete

        async def ask() -> list[Status[object]]:
            return await asyncio.gather(*[delete(PREFIX + key) for key in keys])

        with self._among():
            statuses = self._loop.run(ask())
        for status in statuses:
            if not status.is_ok() and not status.is_not_found():
                raise RuntimeError(f"AIBrix could not delete a page: {status.value}")

    def scan(self) -> Iterator[Sequence[StoredPage]]:
        return pages(self._config, self._connector)

    def close(self) -> None:
        with self._turnstile.alone(CLOSE_S) as alone:
            if self._closed:
                return
            self._closed = True
            if alone:
                self._end()
                self._connector.close()
                self._slab = None

    @contextmanager
    def _among(self) -> Iterator[None]:
        """A call, beside others; not after the end, nor while a database is being reopened."""
        if self._shut:
            self._mend()
        with self._turnstile.among():
            if self._closed or self._shut:
                raise RuntimeError("the storage is closed" if self._closed else "the database does not open")
            yield

    def _mend(self) -> None:
        """Give a database that has shut itself another start, now and then."""
        if not isinstance(self._connector, RocksDBConnector) or self._clock() < self._mend_at:
            return
        with self._turnstile.alone() as alone:
            if alone and not self._closed:
                self._shut = not reopen(self._connector)
                self._mend_at = self._clock() + MEND_S

    def _end(self) -> None:
        self._loop.close()
        self._executor.shutdown(wait=True)

    def _move(
        self, call: Callable[..., Awaitable[Status[object]]], keys: Sequence[PageKey], views: PageViews
    ) -> list[Status[object] | BaseException]:
        """What becomes of each page, once nothing of the batch is under way any more: the memory is lent until then."""
        slab, size = self._slab, int(views.sizes.sum())
        if slab is None:
            raise RuntimeError("no arena is attached")
        if len(views.sizes) != 1:
            raise ValueError(f"pages of {len(views.sizes)} segments cannot be one value")
        places = (views.addresses[:, 0] - self._start).tolist()

        async def move() -> list[Status[object] | BaseException]:
            pages = [(PREFIX + key, Region(slab, place, size)) for key, place in zip(keys, places, strict=True)]
            return await asyncio.gather(*[call(*page) for page in pages], return_exceptions=True)

        with self._among():
            return self._loop.run(move())


def _told(status: Status[object] | BaseException) -> PageResult:
    if isinstance(status, BaseException):
        return Failed(f"{type(status).__name__}: {str(status)[:200]}")
    if status.is_ok():
        return DONE
    if status.is_not_found():
        return MISSING
    return Failed(
        f"{status.error_code.name.lower()}: {str(status.value).splitlines()[0][:200] if status.value else ''}"
    )
