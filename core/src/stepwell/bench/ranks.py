"""`stepwell bench ranks`: how soon a plan is in the runners of all ranks, and how long a step without work takes.

The ranks are processes as an engine has them, with a runner that only notes when it was told; clocks are one machine's.
The baseline is a bare socket pair to one other process: the same bytes there, and back the time at which they had come.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from stepwell.abc.runner import ModelInfo, Row, Runner, SlotOpen, Step, StepPlan, StepResult, TableEdit
from stepwell.bench.echo import SIZE, STAMP
from stepwell.cache.arena import Arena
from stepwell.cache.shards import sharded
from stepwell.config import Chosen, Origin
from stepwell.engine.making import Place
from stepwell.engine.ranks.runner import RanksRunner
from stepwell.engine.ranks.start import spread
from stepwell.engine.ranks.wire import packed
from stepwell.engine.spawn import spawn
from stepwell.offers import Context, NoConfig, Offer
from stepwell.settings import RankSettings
from stepwell.types import ArenaView, Full, GroupSpec, Sampling

PAGE = 64
PREFILL = 8192
WARM = 200
TARGET_US = 100


class Stamping(Runner):
    """Notes in the arena when it is told to launch; its steps are done at once and have sampled zeros."""

    def __init__(self, settings: NoConfig, context: Context) -> None:
        self.model = ModelInfo("empty", "empty", "u8", "1", 1 << 20, 2, ())
        self.groups = (GroupSpec("all", Full(), 8, (0,), 1, context.world),)
        self.preferred_chunk = PREFILL
        self._stamp: memoryview | None = None
        self._wake: Callable[[], None] = lambda: None

    def open(self, page_size: int, pages: Mapping[str, int], slots: int, wake: Callable[[], None]) -> None:
        self._wake = wake

    def pin(self, arena: ArenaView) -> None:
        at = arena.slots(0)[0]
        self._stamp = arena.memory[at : at + STAMP.size]

    def launch(self, plan: StepPlan) -> Step:
        now = time.monotonic_ns()
        if self._stamp is not None:
            STAMP.pack_into(self._stamp, 0, now)
        return Ended(StepResult(plan.number, 1, tuple((0,) if row.sample else () for row in plan.rows)))


class Ended(Step):
    """A step that is done."""

    def __init__(self, result: StepResult) -> None:
        self._result = result

    def poll(self) -> StepResult:
        return self._result


def plans() -> dict[str, StepPlan]:
    """What is measured: decodes of many rows, one in 64 of which needs a page, and a prefill."""
    decodes = {f"decode of {rows}": _decode(rows) for rows in (1, 64, 256)}
    tokens = np.arange(PREFILL, dtype=np.int32)
    table = TableEdit(0, 0, 0, np.arange(PREFILL // PAGE, dtype=np.int32))
    opened = SlotOpen(0, Sampling(), tokens.tobytes(), 0)
    prefill = StepPlan(1, (Row(0, 0, PREFILL, tokens.tobytes(), True),), (opened,), (), (table,))
    return {**decodes, f"prefill of {PREFILL}": prefill}


def _decode(rows: int) -> StepPlan:
    edits = tuple(TableEdit(slot, 0, 16, np.array([slot], np.int32)) for slot in range(0, rows, PAGE))
    return StepPlan(1, tuple(Row(slot, 1000, 1, None, True) for slot in range(rows)), tables=edits)


class Ranks:
    """Ranks and an arena in which they note times."""

    def __init__(self, world: int) -> None:
        offer = Offer("empty", Stamping)
        chosen = Chosen("runner", offer, NoConfig(), Origin("default"))
        self.runner: RanksRunner = spread(chosen, Place("bench", "cpu", Path.cwd), RankSettings(tp=world))
        self._news = threading.Event()
        self._arena = Arena.create(sharded(self.runner.groups, None), 1, [1])
        self.runner.open(1, {"all": 1}, 256, self._news.set)
        self.runner.pin(self._arena)
        first, _, _ = self._arena.slots(0)
        parts, apart = self._arena.parts(0)
        self._places = [first + part * apart for part in range(parts)]

    def one(self, plan: StepPlan) -> tuple[int, int]:
        """Nanoseconds until the last rank was in `launch`, and until the step was known to be done."""
        self._news.clear()
        began = time.monotonic_ns()
        step = self.runner.launch(plan)
        while step.poll() is None:
            self._news.wait()
            self._news.clear()
        ended = time.monotonic_ns()
        there = max(STAMP.unpack_from(self._arena.memory, at)[0] for at in self._places)
        return there - began, ended - began

    def close(self) -> None:
        """End the ranks."""
        self.runner.close()
        self._arena.close()


class Bare:
    """A socket pair to a process that answers with the time."""

    def __init__(self) -> None:
        self._process, self._end = spawn("stepwell.bench.echo", "the baseline", "bench")

    def one(self, body: bytes) -> tuple[int, int]:
        """Nanoseconds until the bytes were there, and until the answer was."""
        began = time.monotonic_ns()
        self._end.sendall(SIZE.pack(len(body)) + body)
        there = STAMP.unpack(self._end.recv(STAMP.size))[0]
        return there - began, time.monotonic_ns() - began

    def close(self) -> None:
        """End it."""
        self._end.close()
        self._process.kill()
        self._process.wait()


def measure(world: int, rounds: int) -> dict[str, dict[str, float]]:
    """Microseconds, by plan: to all ranks, and there and back, of ranks and of a bare socket pair in turns."""
    ranks, bare = Ranks(world), Bare()
    try:
        return {name: _measured(partial(ranks.one, plan), bare, packed(plan), rounds) for name, plan in plans().items()}
    finally:
        ranks.close()
        bare.close()


def _measured(one: Callable[[], tuple[int, int]], bare: Bare, body: bytes, rounds: int) -> dict[str, float]:
    times = np.array([one() + bare.one(body) for _ in range(WARM + rounds)][WARM:]) / 1e3
    row: dict[str, float] = {"bytes": len(body)}
    for column, name in enumerate(("launch", "step", "bare_launch", "bare_step")):
        row[f"{name}_p50_us"], row[f"{name}_p99_us"] = (
            round(float(np.percentile(times[:, column], share)), 1) for share in (50, 99)
        )
    row["times_bare"] = round(row["launch_p50_us"] / row["bare_launch_p50_us"], 2)
    return row


@click.command()
@click.option("--ranks", default=2, show_default=True, type=click.IntRange(2, 16), help="So many processes.")
@click.option("--rounds", default=2000, show_default=True, type=click.IntRange(10), help="Steps of each plan.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a table.")
def command(ranks: int, rounds: int, as_json: bool) -> None:
    """Bring plans to ranks, next to a bare socket pair."""
    result = measure(ranks, rounds)
    if as_json:
        click.echo(json.dumps({"ranks": ranks, "rounds": rounds, "plans": result}, indent=2))
        return
    table = Table(
        title=f"plans to {ranks} ranks, microseconds (p50 / p99)", caption="bare: one socket pair, same bytes"
    )
    for head in ("plan", "bytes", "in launch", "bare", "ratio", "whole step", "bare ping"):
        table.add_column(head, justify="left" if head == "plan" else "right")
    for name, row in result.items():
        pairs = [f"{row[f'{key}_p50_us']:.0f} / {row[f'{key}_p99_us']:.0f}" for key in ("launch", "bare_launch")]
        more = [f"{row[f'{key}_p50_us']:.0f} / {row[f'{key}_p99_us']:.0f}" for key in ("step", "bare_step")]
        table.add_row(name, f"{row['bytes']:.0f}", *pairs, f"{row['times_bare']:.2f}", *more)
    Console().print(table)
