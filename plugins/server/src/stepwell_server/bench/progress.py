"""How far a level is: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

from time import perf_counter
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from stepwell_server.bench.drive import Plan, Step
from stepwell_server.bench.samples import Sample

EVERY_S = 10.0


class Progress:
    """Of one level, for as long as the block lasts."""

    def __init__(self, console: Console, step: Step, plan: Plan) -> None:
        self._console, self._step, self._plan = console, step, plan
        self._count = self._failed = 0
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
            refresh_per_second=4,
        )
        self._task = self._bar.add_task(f"{step}: warming up", total=None)
        self._said = self._begin = perf_counter()

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()
        if not self._console.is_terminal and kind is None:
            self._say()

    def warming(self, sample: Sample) -> None:
        """A request that does not count has ended."""

    def heard(self, sample: Sample) -> None:
        """A request has ended."""
        self._count += 1
        self._failed += sample.failure is not None
        failed = f", {self._failed} failed" if self._failed else ""
        self._bar.update(
            self._task,
            description=f"{self._step}{failed}",
            completed=self._count,
            total=self._plan.wanted(self._step),
        )
        if not self._console.is_terminal and perf_counter() - self._said > EVERY_S:
            self._say()

    def _say(self) -> None:
        self._said = perf_counter()
        wanted = self._plan.wanted(self._step)
        of = "" if wanted is None else f" of {wanted}"
        failed = f", {self._failed} failed" if self._failed else ""
        spent = self._said - self._begin
        self._console.print(f"{self._step}: {self._count}{of} requests{failed}, {spent:.0f} s", highlight=False)
