"""Pages through the mount: vectored calls at an offset, several at once, past the page cache where that is possible."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Sequence
from operator import itemgetter
from queue import SimpleQueue

from stepwell import ArenaView, PageViews
from stepwell_threefs.folder import Folder
from stepwell_threefs.moves import Place
from stepwell_threefs.segment import BLOCK

CALL_BYTES = 4 << 20
CALL_PAGES = 256
"""Most bytes and pages of one system call."""

STALE = (errno.ENOTCONN, errno.ESTALE, errno.ESHUTDOWN)
"""What a file says that was opened before its filesystem was mounted anew."""


class PosixMover:
    """Threads that are shared by all calls. They are daemons: a process may end though a mount does not answer."""

    def __init__(self, folder: Folder, threads: int) -> None:
        self._direct = folder.direct
        self._threads = threads
        self._lock = threading.Lock()
        self._closed = False
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        for _ in range(threads):
            threading.Thread(target=self._serve, name="stepwell-3fs", daemon=True).start()

    def attach(self, arena: ArenaView) -> None:
        """Nothing to know: any memory will do."""

    def move(
        self, places: Sequence[Place], pages: PageViews, moved: Callable[[int], None], *, write: bool
    ) -> dict[int, str]:
        size = int(pages.sizes.sum())
        buffers = pages.buffers()
        aligned = self._direct and size % BLOCK == 0 and not (pages.addresses % BLOCK).any()
        direct = os.O_DIRECT if aligned else 0
        flags = (os.O_RDWR if write else os.O_RDONLY) | direct
        failed: dict[int, str] = {}

        def carry(run: Sequence[Place]) -> None:
            bad = _carry(run, buffers, size, flags, write)
            failed.update(bad)
            for _, _, at in run:
                if not bad or at not in bad:
                    moved(at)

        self._together([lambda run=run: carry(run) for run in self._cut(places, size)])  # type: ignore[misc]
        if write and not direct:
            for segment in {place.segment.number: place.segment for place in places}.values():
                segment.settle()
        return failed

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for _ in range(self._threads):
                self._queue.put(None)

    def _cut(self, places: Sequence[Place], size: int) -> list[list[Place]]:
        """Neighbours in one call, but never so many that a thread would have nothing to do."""
        most = max(1, min(CALL_PAGES, CALL_BYTES // max(size, 1), -(-len(places) // self._threads)))
        of_segment: dict[int, list[Place]] = {}
        for place in places:
            of_segment.setdefault(place[0].number, []).append(place)
        runs: list[list[Place]] = []
        for of_one in of_segment.values():
            of_one.sort(key=itemgetter(1))
            run: list[Place] = []
            follows = -1
            for place in of_one:
                if place[1] == follows and len(run) < most:
                    run.append(place)
                else:
                    run = [place]
                    runs.append(run)
                follows = place[1] + size
        return runs

    def _together(self, tasks: Sequence[Callable[[], None]]) -> None:
        if len(tasks) == 1:
            return tasks[0]()
        over = threading.Semaphore(0)
        broken: list[BaseException] = []

        def run(task: Callable[[], None]) -> None:
            try:
                task()
            except BaseException as error:
                broken.append(error)
            over.release()

        with self._lock:
            ended = self._closed
            if not ended:
                for task in tasks:
                    self._queue.put(lambda task=task: run(task))  # type: ignore[misc]
        for task in tasks if ended else ():  # a call that outlives the threads does the rest by itself
            run(task)
        for _ in tasks:
            over.acquire()
        if broken:
            raise broken[0]

    def _serve(self) -> None:
        while (task := self._queue.get()) is not None:
            task()
            del task


def _carry(run: Sequence[Place], buffers: Sequence[memoryview], size: int, flags: int, write: bool) -> dict[int, str]:
    """One run of neighbours; what failed of it."""
    parts = [buffers[at] for _, _, at in run]
    done, why = 0, "the file ends before the page does"
    try:
        handle = run[0].segment.open(flags)
        call = os.pwritev if write else os.preadv
        while done < size * len(run):
            first, inside = divmod(done, size)
            moved = call(handle.fd, [parts[first][inside:], *parts[first + 1 :]], run[0].offset + done)
            if moved == 0:
                break
            done += moved
    except OSError as error:
        why = error.strerror or str(error)
        if error.errno in STALE:
            run[0].segment.close()
    if done == size * len(run):
        return {}
    return {place.at: f"{place.segment.stem}: {why}" for nth, place in enumerate(run) if (nth + 1) * size > done}
