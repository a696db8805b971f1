"""`stepwell eplb plan`: a placement from counts, and what it is worth."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from stepwell import ConfigError, Placement, Topology
from stepwell_eplb.check import check_current
from stepwell_eplb.cli import heat
from stepwell_eplb.cli.files import read_counts, read_placement, write, write_placement
from stepwell_eplb.cli.options import balancer_of, in_order, place_options, topology_of
from stepwell_eplb.cli.quality import Floats, by_rank, unevenness
from stepwell_eplb.greedy import Ints


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan beside what was there before."""

    load: Ints
    topology: Topology
    before: Placement
    after: Placement
    balancer: str
    seconds: float

    def ratios(self, placement: Placement) -> Floats:
        """Of each layer, max/mean."""
        return unevenness(self.load, placement, self.topology.ranks)

    @property
    def moves(self) -> Ints:
        """Of each layer."""
        moved: Ints = (self.before.experts != self.after.experts).sum(axis=1)
        return moved

    @property
    def used(self) -> Ints:
        """Layers that have tokens."""
        return np.flatnonzero(self.load.any(axis=1))

    def heats(self) -> list[tuple[str, Floats]]:
        """Before and after."""
        pairs = (("before", self.before), ("after", self.after))
        return [(name, by_rank(self.load, placement, self.topology.ranks)) for name, placement in pairs]

    def sentence(self) -> str:
        """All of it, in short."""
        before, after = (self.ratios(placement)[self.used] for placement in (self.before, self.after))
        share = self.moves.sum() / self.before.experts.size
        return (
            f"{self.balancer}: max/mean {before.mean():.4f} (worst {before.max():.4f}) becomes {after.mean():.4f} "
            f"(worst {after.max():.4f}); {self.moves.sum():,} of {self.before.experts.size:,} slots change "
            f"({share:.1%}), planned in {self.seconds * 1e3:.0f} ms"
        )

    def plain(self) -> dict[str, object]:
        """For --json."""
        before, after = self.ratios(self.before), self.ratios(self.after)
        return {
            "balancer": self.balancer,
            "ranks": self.topology.ranks,
            "slots": self.topology.slots,
            "seconds": round(self.seconds, 4),
            "moves": int(self.moves.sum()),
            "layers": [
                {
                    "layer": layer,
                    "tokens": int(self.load[layer].sum()),
                    "before": round(float(before[layer]), 5),
                    "after": round(float(after[layer]), 5),
                    "moves": int(self.moves[layer]),
                }
                for layer in range(len(self.load))
            ],
            "physical_to_logical_map": self.after.experts.tolist(),
        }


@click.command(name="plan")
@click.argument("counts", metavar="COUNTS.json", type=click.Path(path_type=Path))
@place_options
@click.option("--current", metavar="FILE", type=click.Path(path_type=Path), help="Where experts stand now; as --out.")
@click.option("--out", metavar="FILE", type=click.Path(path_type=Path), help="Write the placement, as JSON.")
@click.option("--svg", "svg_file", metavar="FILE", type=click.Path(path_type=Path), help="Write the heat map.")
@click.option("--html", "html_file", metavar="FILE", type=click.Path(path_type=Path), help="Write a page with it.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
def plan(
    counts: Path,
    current: Path | None,
    out: Path | None,
    svg_file: Path | None,
    html_file: Path | None,
    as_json: bool,
    balancer: str,
    budget: float | None,
    target: float | None,
    **given: Any,
) -> None:
    """Place experts for the tokens that each got.

    COUNTS.json has [layers][experts] or [steps][layers][experts], plain or as "logical_count". Without --current,
    experts stand in order before, and spare slots have the first ones again.
    """
    load = read_counts(counts).sum(axis=0)
    if not load.any():
        raise ConfigError(f"{counts}: no expert got a token, so there is nothing to plan for")
    planned = plan_for(load, topology_of(*load.shape, **given), current, balancer, budget, target)
    if out is not None:
        write_placement(out, planned.after, planned.topology.ranks)
    if svg_file is not None:
        write(svg_file, heat.svg(planned.heats()))
    if html_file is not None:
        write(html_file, heat.page(f"Experts of {counts.name}", [planned.sentence()], planned.heats()))
    if as_json:
        click.echo(json.dumps(planned.plain()))
    else:
        show(planned)


def plan_for(
    load: Ints, topology: Topology, current: Path | None, name: str, budget: float | None, target: float | None
) -> Planned:
    """Ask the balancer, once."""
    balancer = balancer_of(name, budget, target)
    if current is None:
        before = in_order(*load.shape, topology)
    else:
        before = read_placement(current)
        try:
            check_current(before, *load.shape, topology.slots)
        except ConfigError as error:
            raise ConfigError(f"{current}: {error}") from error
    begin = time.perf_counter()
    after = balancer.place(load, topology, before)
    return Planned(load, topology, before, after, name, time.perf_counter() - begin)


def show(planned: Planned) -> None:
    """Tables on the terminal."""
    console = Console()
    before, after = planned.ratios(planned.before), planned.ratios(planned.after)
    table = Table(title=f"{planned.topology.slots} slots on {planned.topology.ranks} ranks")
    for name in ("layer", "tokens", "max/mean before", "after", "moves", "hottest expert", "of all tokens"):
        table.add_column(name, justify="right")
    for layer in planned.used.tolist():
        tokens, hottest = planned.load[layer].sum(), planned.load[layer].argmax()
        table.add_row(
            f"{layer}",
            f"{tokens:,}",
            f"{before[layer]:.4f}",
            f"{after[layer]:.4f}",
            f"{planned.moves[layer]}",
            f"{hottest}",
            f"{planned.load[layer, hottest] / tokens:.1%}",
        )
    console.print(table)
    for line in heat.in_terminal(planned.heats(), console.width):
        console.print(line, no_wrap=True, highlight=False)
    console.print(heat.LEGEND, highlight=False)
    idle = len(planned.load) - len(planned.used)
    if idle:
        console.print(f"{idle} layers without tokens are not shown in the table", highlight=False)
    console.print(planned.sentence(), highlight=False)
