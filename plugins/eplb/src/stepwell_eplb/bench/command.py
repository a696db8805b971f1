"""The command `stepwell bench eplb`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

import click
from rich.console import Console
from rich.table import Table

from stepwell_eplb.bench.measure import Quality, Repair, Speed, quality, repair, sorts, speed
from stepwell_eplb.cli.options import topology_of
from stepwell_eplb.draw import draw


@click.command(name="eplb")
@click.option("--layers", type=click.IntRange(1, 1024), default=58, show_default=True)
@click.option("--experts", type=click.IntRange(1, 4096), default=256, show_default=True, help="Of a layer.")
@click.option("--slots", type=click.IntRange(1, 8192), default=288, show_default=True, help="Of all ranks.")
@click.option("--ranks", "all_ranks", multiple=True, type=click.IntRange(1, 1024), help="Default: 32, 72.")
@click.option("--rounds", type=click.IntRange(1, 1000), default=9, show_default=True, help="Of which medians are told.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
def eplb(
    layers: int, experts: int, slots: int, all_ranks: Sequence[int], rounds: int, seed: int, as_json: bool
) -> None:
    """Time the expert balancers beside the published algorithm, and compare what they reach.

    Times are of one thread's processor time. The baseline is the published algorithm in plain loops, of this package;
    its own code, on torch, is slower still.
    """
    all_ranks = all_ranks or (32, 72)
    for ranks in all_ranks:
        topology_of(layers, experts, ranks, slots, None, 1, 1)
    load = draw("served", seed, layers, experts)
    speeds = [speed(load, slots, ranks, 1, 1, rounds) for ranks in all_ranks]
    qualities = [quality(sort, seed, layers, experts, slots, ranks) for ranks in all_ranks for sort in sorts()]
    repairs = [repair(sort, seed, layers, experts, slots, ranks) for ranks in all_ranks for sort in sorts()]
    if as_json:
        told = {"speed": speeds, "quality": qualities, "repair": repairs}
        click.echo(json.dumps({"seed": seed} | {name: [asdict(one) for one in some] for name, some in told.items()}))
    else:
        title = f"{layers} layers, {experts} experts in {slots} slots, seed {seed}"
        show(title, speeds, qualities, repairs)


def show(title: str, speeds: Sequence[Speed], qualities: Sequence[Quality], repairs: Sequence[Repair]) -> None:
    """Three tables."""
    console = Console()
    for name, rows in (("placed anew, ms", speeds), ("max/mean", qualities), ("repaired after a drift", repairs)):
        table = Table(title=f"{name}: {title}")
        for column in asdict(rows[0]):
            table.add_column(column.replace("_", " "), justify="left" if column == "sort" else "right")
        for row in rows:
            table.add_row(*map(str, asdict(row).values()))
        console.print(table)
