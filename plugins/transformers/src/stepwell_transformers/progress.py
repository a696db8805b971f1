"""What a user sees while a model is fetched: a bar on a terminal, lines in a log elsewhere."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text

from stepwell_transformers.apart import Report


class _Size(ProgressColumn):
    """Bytes, where the work is counted in bytes."""

    def __init__(self) -> None:
        super().__init__()
        self._download = DownloadColumn()

    def render(self, task: Task) -> Text:
        return self._download.render(task) if task.total else Text()


@contextmanager
def shown(log: logging.Logger) -> Iterator[Report]:
    """A report of what is done; nothing is drawn until it is first used."""
    console = Console(stderr=True)
    progress = Progress(
        TextColumn("{task.description}"), BarColumn(), _Size(), TimeElapsedColumn(), console=console, transient=True
    )
    task = progress.add_task("", total=None)
    said = ""

    def report(what: str, done: int = 0, total: int = 0) -> None:
        nonlocal said
        if what != said:
            said = what
            log.info("%s", what)
        if console.is_terminal:
            progress.start()
            progress.update(task, description=what, completed=done, total=total or None)

    try:
        yield report
    finally:
        if progress.live.is_started:  # elsewhere a stop leaves an empty line behind
            progress.stop()
