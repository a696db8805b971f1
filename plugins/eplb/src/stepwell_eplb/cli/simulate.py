"""`stepwell eplb simulate`: counts over time, with a trigger and a balancer, and without."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from stepwell import Balancer, ConfigError, Placement, Topology
from stepwell.cli.options import Number
from stepwell_eplb.cli.course import Course, read_course
from stepwell_eplb.cli.options import MOST, balancer_of, in_order, place_options, topology_of
from stepwell_eplb.cli.quality import unevenness
from stepwell_eplb.greedy import Ints

if TYPE_CHECKING:
    from stepwell_transformers.balance import TriggerSettings

LINES = 20
"""Of the table, over all steps."""


@dataclass(frozen=True, slots=True)
class Moment:
    """One step."""

    step: int
    ratio: float
    """max/mean of the step's tokens, the mean over layers; 1 at best."""
    still: float
    """The same, had nothing ever moved."""
    planned: bool
    moves: int
    """Experts that changed their slot before this step."""
    layers: int
    """Layers that changed before this step."""


class Simulation:
    """Steps of counts on a placement that changes a few layers at a time."""

    def __init__(
        self,
        topology: Topology,
        balancer: Balancer,
        settings: TriggerSettings,
        half_life: float,
        layers_a_step: int,
    ) -> None:
        self._topology, self._balancer, self._settings = topology, balancer, settings
        self._half_life, self._few = half_life, layers_a_step

    def run(self, course: Course) -> Iterator[Moment]:
        """Count, change what is pending, and plan where the trigger says so."""
        from stepwell_transformers.balance import Recorder, Trigger

        layers, experts = course.marks.shape[1:]
        ranks = self._topology.ranks
        first = in_order(layers, experts, self._topology)
        now, pending, following = first.experts.copy(), np.empty(0, dtype=np.int64), first
        recorder, trigger = Recorder(layers, experts, self._half_life), Trigger(self._settings)
        for step, counts in enumerate(course):
            changed, pending = pending[: self._few], pending[self._few :]
            moves = int((now[changed] != following.experts[changed]).sum())
            now[changed] = following.experts[changed]
            recorder.add(counts)
            load, placed = recorder.load(), Placement(now)
            due = None if len(pending) else trigger.due(load, placed, ranks, recorder.since)
            if due is not None:
                following = self._balancer.place(load, self._topology, Placement(now.copy()))
                pending = np.flatnonzero((following.experts != now).any(axis=1))
                trigger.planned(load, following, ranks)
                recorder.planned()
            used = counts.any(axis=1)
            yield Moment(
                step,
                _mean(counts[used], now[used], ranks),
                _mean(counts[used], first.experts[used], ranks),
                due is not None,
                moves,
                len(changed),
            )


def _mean(counts: Ints, experts: np.ndarray, ranks: int) -> float:
    return float(unevenness(counts, Placement(experts), ranks).mean()) if len(counts) else 1.0


@click.command(name="simulate")
@click.argument("counts", metavar="COUNTS.json...", nargs=-1, required=True, type=click.Path(path_type=Path))
@place_options
@click.option("--steps", type=click.IntRange(1, 1_000_000), help="Draw so many, from file to file; default: 1000.")
@click.option("--tokens", type=click.IntRange(1, 1 << 40), default=32768, show_default=True, help="Of a drawn step.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Draws the same steps again.")
@click.option("--half-life", type=Number(0, min_open=True), default=100.0, show_default=True, help="Of counts, steps.")
@click.option("--below", type=Number(0, 1), default=0.9, show_default=True, help="Mean over max that asks for a plan.")
@click.option("--gap", type=click.IntRange(1), default=100, show_default=True, help="Steps between plans, at least.")
@click.option("--max-age", type=click.IntRange(0), default=2000, show_default=True, help="Of a plan that fell short.")
@click.option("--layers", "few", type=click.IntRange(1, MOST), default=4, show_default=True, help="Moved in a step.")
@click.option("--json", "as_json", is_flag=True, help="Print every step as JSON instead of a table.")
def simulate(
    counts: tuple[Path, ...],
    steps: int | None,
    tokens: int,
    seed: int,
    half_life: float,
    below: float,
    gap: int,
    max_age: int,
    few: int,
    as_json: bool,
    balancer: str,
    budget: float | None,
    target: float | None,
    **given: Any,
) -> None:
    """Replay counts over time, planning as a server would.

    One file with [steps][layers][experts] is replayed. Several files, or --steps, are drawn from: the chances of
    experts go over from each file's to the next one's. The trigger and the recorder are those of stepwell-transformers.
    """
    try:
        from stepwell_transformers.balance import TriggerSettings
    except ModuleNotFoundError as error:
        raise ConfigError("simulate uses the trigger of stepwell-transformers; pip install it, too") from error
    course = read_course(counts, steps, tokens, seed)
    topology = topology_of(*course.marks.shape[1:], **given)
    settings = TriggerSettings(below=below, min_gap=gap, max_age=max_age)
    simulation = Simulation(topology, balancer_of(balancer, budget, target), settings, half_life, few)
    console = Console(stderr=True)
    done = track(simulation.run(course), "steps", course.steps, console=console, disable=not sys.stderr.isatty())
    moments = list(done)
    if as_json:
        click.echo(json.dumps({"seed": seed, "steps": [asdict(moment) for moment in moments]}))
    else:
        show(moments, course.marks.shape[1] * topology.slots)


def show(moments: list[Moment], slots: int) -> None:
    """A line for each part of the time."""
    table = Table(title="max/mean over time", caption="layers changed and experts moved; unmoved: had none ever been")
    for name in ("steps", "unmoved", "balanced", "plans", "layers", "moves", "of slots"):
        table.add_column(name, justify="right")
    for part in np.array_split(np.arange(len(moments)), min(LINES, len(moments))):
        some = [moments[at] for at in part.tolist()]
        table.add_row(f"{some[0].step}-{some[-1].step}", *_cells(some, slots))
    table.add_section()
    table.add_row("all", *_cells(moments, slots))
    Console().print(table)


def _cells(some: list[Moment], slots: int) -> list[str]:
    moves = sum(moment.moves for moment in some)
    return [
        f"{np.mean([moment.still for moment in some]):.4f}",
        f"{np.mean([moment.ratio for moment in some]):.4f}",
        f"{sum(moment.planned for moment in some)}",
        f"{sum(moment.layers for moment in some)}",
        f"{moves:,}",
        f"{moves / slots:.1%}",
    ]
