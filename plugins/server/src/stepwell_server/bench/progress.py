"""How far a level is: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

from time import perf_counter
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from stepwell_server.bench.drive import Plan, Step
from stepwell_server.bench.results import Level
from stepwell_server.bench.samples import Sample
from stepwell_server.bench.table import number

EVERY_S = 10.0


class Progress:
    """Of one level, for as long as the block lasts."""

    def __init__(self, console: Console, step: Step, plan: Plan) -> None:
        self._console, self._step, self._wanted = console, step, plan.wanted(step)
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

    def warming(self, sample: Sample) -> None:
        """A request that does not count has ended."""

    def begins(self) -> None:
        """From now on they count."""
        self._said = self._begin = perf_counter()
        self._bar.update(self._task, description=str(self._step), completed=0, total=self._wanted)

    def heard(self, sample: Sample) -> None:
        """A request has ended."""
        self._count += 1
        self._failed += sample.failure is not None
        self._bar.update(self._task, description=f"{self._step}{self._failures()}", completed=self._count)
        if not self._console.is_terminal and perf_counter() - self._said > EVERY_S:
            self._said = perf_counter()
            of = "" if self._wanted is None else f" of {self._wanted}"
            self._say(f"{self._count}{of} requests{self._failures()} in {self._said - self._begin:.0f} s")

    def ended(self, level: Level) -> None:
        """The level's outcome in a line."""
        self._bar.stop()
        if not self._count:
            return
        found = f"{number(level.output_tokens_per_s)} output tok/s"
        self._say(f"{self._count} requests{self._failures()} in {level.seconds:.3g} s, {found}")

    def _failures(self) -> str:
        return f", {self._failed} failed" if self._failed else ""

    def _say(self, text: str) -> None:
        self._console.print(f"{self._step}: {text}", highlight=False, markup=False, soft_wrap=True)
