"""Several replays while they run: which are done, how far the others are, and the time left."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.progress import TimeRemainingColumn as TimeLeft

from stepwell.replay.parallel import Ended, Moved
from stepwell.replay.result import Result

Event = Moved | Ended[Result]


def watched(events: Iterable[Event], names: Sequence[str], *, quiet: bool) -> Iterator[Event]:
    """The same events, with a progress on stderr where that is a terminal; children report as often as it needs."""
    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(24), TaskProgressColumn(), TimeElapsedColumn(), TimeLeft()
    with Progress(
        *columns, console=console, auto_refresh=False, transient=True, disable=quiet or not console.is_terminal
    ) as progress:
        whole = progress.add_task(f"0 of {len(names)} done", total=len(names))
        bars: dict[int, TaskID] = {}
        shares, ended = [0.0] * len(names), 0
        for event in events:
            at = event.number
            if at not in bars:
                bars[at] = progress.add_task(f"  {names[at]}", total=1.0)
            shares[at] = event.share if isinstance(event, Moved) else 1.0
            progress.update(bars[at], completed=shares[at])
            if isinstance(event, Ended):
                ended += 1
                progress.remove_task(bars[at])
                if not progress.disable:
                    progress.console.print(f"{names[at]}: {event.result.wall_s:.1f} s", highlight=False, markup=False)
            progress.update(whole, completed=sum(shares), description=f"{ended} of {len(names)} done")
            progress.refresh()
            yield event


@contextmanager
def reading(*, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """What is told (done, of) while a trace is read, with a progress on stderr where that is a terminal."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=quiet or not console.is_terminal) as progress:
        bar = progress.add_task("reading the trace")
        yield lambda done, of: progress.update(bar, completed=done, total=of)
