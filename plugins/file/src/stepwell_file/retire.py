"""The second chance: before a segment leaves, its pages that were of use are copied to the newest one."""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

from stepwell import PageKey, PageViews
from stepwell_file.catalog import Catalog, Entry
from stepwell_file.segment import BLOCK, Segment, claim
from stepwell_file.space import Space

Carry = Callable[[Sequence[PageKey], Sequence[Entry], PageViews], int]

BATCH_BYTES = 8 << 20


class Retirer:
    """Prepares, on a thread of its own and one at a time, the segment that the next one will replace."""

    def __init__(self, space: Space, catalog: Catalog, log: logging.Logger) -> None:
        self._space = space
        self._catalog = catalog
        self._log = log
        self._thread: threading.Thread | None = None
        self.rescued = 0
        """Pages that were copied."""

    def consider(self, carry: Carry) -> None:
        """Retire a segment if the next one would find no room. Called after each new segment; never waits.

        `carry` copies pages. It is not kept, since its owner owns this: what was closed goes, and its files with it.
        """
        if self._thread is not None and self._thread.is_alive():
            return
        segment = self._space.crowded()
        if segment is not None:
            self._thread = threading.Thread(
                target=self._retire, args=(segment, carry), name="stepwell-file-retire", daemon=True
            )
            self._thread.start()

    def close(self) -> None:
        """Finish what is under way."""
        if self._thread is not None:
            self._thread.join()

    def _retire(self, segment: Segment, carry: Carry) -> None:
        lock = None
        try:
            lock = claim(segment.index)
            if lock is None:
                return  # somebody writes to it, or another process retires it
            for batch in _batches(self._catalog.hot(segment), self._space.segment_bytes // 2):
                self._copy(batch, carry)
            self._space.retire(segment)
        except Exception as error:  # pages may be lost, which is a miss; the folder is made room in all the same
            self._log.warning("%s could not be retired: %s", segment.data.name, error)
        finally:
            if lock is not None:
                os.close(lock)

    def _copy(self, batch: Sequence[tuple[bytes, Entry]], carry: Carry) -> None:
        size = batch[0][1].length
        stride = -(-size // BLOCK) * BLOCK
        memory = mmap.mmap(-1, stride * len(batch))
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        views = PageViews.of(memoryview(memory), address, [nth * stride for nth in range(len(batch))], size)
        self.rescued += carry([key for key, _ in batch], [entry for _, entry in batch], views)


def _batches(pages: Sequence[tuple[bytes, Entry]], most: int) -> Iterator[Sequence[tuple[bytes, Entry]]]:
    """Pages of one size each, a few MiB at a time, up to `most` bytes in all."""
    for size, same in groupby(pages, key=lambda pair: pair[1].length):
        some = list(same)
        count = max(1, BATCH_BYTES // size)
        for at in range(0, len(some), count):
            batch = some[at : at + count][: most // size]
            if not batch:
                return
            most -= len(batch) * size
            yield batch
