"""One run of the bench: start or find what is measured, go through the levels, put the report together."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from stepwell.cli.lazy import INTERRUPTED
from stepwell.cli.options import read_config
from stepwell.config import Config
from stepwell_server.bench import machine
from stepwell_server.bench.asked import Asked
from stepwell_server.bench.drive import Plan, measure, unless, warm
from stepwell_server.bench.progress import Progress
from stepwell_server.bench.results import FORMAT, Level, Report
from stepwell_server.bench.target import Target


class Session:
    """Everything between the options and the report."""

    def __init__(self, asked: Asked, console: Console, command: Sequence[str]) -> None:
        self._asked, self._console, self._command = asked, console, command
        self._stopped = False

    def run(self) -> Report:
        """Measure. ConfigError: it cannot be done so."""
        plan, begun = self._asked.plan(), datetime.now(UTC)
        target, config = self._target()
        try:
            notes, levels = asyncio.run(self._levels(target, plan))
        finally:
            target.close()
        return Report(
            format=FORMAT,
            date=begun.isoformat(timespec="seconds"),
            command=machine.discreet(self._command),
            versions=machine.versions(),
            machine=machine.machine(),
            target=target.told(),
            config=[] if config is None else machine.settings(config),
            workload=str(plan.workload),
            seed=plan.seed,
            warmup=plan.warmup,
            notes=notes,
            levels=levels,
        )

    def status(self, report: Report) -> int:
        """Exit status: of Ctrl-C, of failed requests, or 0."""
        if self._stopped:
            return INTERRUPTED
        return 0 if report.clean else 1

    def _target(self) -> tuple[Target, Config | None]:
        """What is measured, and its config where it is our own. What is not needed is not imported."""
        if self._asked.url is not None:
            return self._outside(self._asked.url), None
        logging.basicConfig(level=logging.ERROR, format="%(name)s: %(message)s")
        self._console.print("starting the engine", style="dim")
        return self._served() if self._asked.http else self._inside()

    def _outside(self, url: str) -> Target:
        from stepwell_server.bench.http import Address
        from stepwell_server.bench.outside import Outside

        asked = self._asked
        address, key = Address.of(url), asked.key()
        return Outside(
            address, asked.manner(), prompts_as=asked.prompts_as, model=asked.model, key=key, vocab=asked.vocab
        )

    def _inside(self) -> tuple[Target, Config]:
        from stepwell_server.bench.inside import Inside

        config = read_config(self._asked.path, self._asked.sets, self._asked.made())
        return Inside(config, self._asked.manner()), config

    def _served(self) -> tuple[Target, Config]:
        from stepwell_server.bench.http import Address
        from stepwell_server.bench.outside import Outside
        from stepwell_server.bench.served import Served

        asked = self._asked
        served = Served(None if asked.path is None else Path(asked.path), asked.sets, asked.made())
        return Outside(
            Address.of(served.url),
            asked.manner(),
            prompts_as=asked.prompts_as,
            key=served.key,
            vocab=asked.vocab,
            kind="served",
            release=served.close,
        ), served.config

    async def _levels(self, target: Target, plan: Plan) -> tuple[list[str], list[Level]]:
        stop = asyncio.Event()
        with self._stopping(stop):
            try:
                return await self._measured(target, plan, stop)
            finally:
                target.leave()

    async def _measured(self, target: Target, plan: Plan, stop: asyncio.Event) -> tuple[list[str], list[Level]]:
        notes: list[str] = []
        levels: list[Level] = []

        async def prepare() -> None:
            notes.extend(await target.prepare(plan.workload.longest))

        if not await unless(stop, prepare()):
            return notes, levels
        for step in plan.steps:
            with Progress(self._console, step, plan) as progress:
                if not await unless(stop, warm(target, plan, step, progress.warming)):
                    break
                progress.begins()
                level = await measure(target, plan, step, progress.heard, stop)
                progress.ended(level)
            if level.completed or level.failed:
                levels.append(level)
            if stop.is_set():
                break
            if not level.completed:
                if step is not plan.steps[-1]:
                    notes.append(f"nothing was answered at {step}, so further levels were left out")
                break
        return notes, levels

    @contextmanager
    def _stopping(self, stop: asyncio.Event) -> Iterator[None]:
        """Ctrl-C and a polite kill end the measurement, not its report; a second one ends all."""
        loop = asyncio.get_running_loop()

        def end() -> None:
            self._stopped = True
            stop.set()
            undo()

        undo = _handled(loop, end)
        try:
            yield
        finally:
            undo()


def _handled(loop: asyncio.AbstractEventLoop, end: Callable[[], None]) -> Callable[[], None]:
    which = (signal.SIGINT, signal.SIGTERM)
    try:
        for one in which:
            loop.add_signal_handler(one, end)
    except (RuntimeError, ValueError, NotImplementedError):  # not the main thread, which alone is told of signals
        return lambda: None

    def undo() -> None:
        for one in which:
            loop.remove_signal_handler(one)

    return undo
