"""What both commands take: what experts are placed on, and by which balancer."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import click
import numpy as np

from stepwell import Balancer, ConfigError, Placement, Topology
from stepwell.cli.options import Number, read_config
from stepwell.engine.making import Place
from stepwell_eplb.check import check_topology

F = TypeVar("F", bound=Callable[..., Any])
MOST = 1 << 16
"""Ranks, slots, nodes or groups that can be meant."""
MOST_CELLS = 1 << 28
"""Layers x ranks x experts that fit into memory several times."""


def place_options(command: F) -> F:
    """The options; they come as `Asked.of(**given)` takes them."""
    count = click.IntRange(1, MOST)
    for option in (
        click.option("--ranks", type=count, required=True, help="Ranks that share the experts."),
        click.option("--slots", type=count, help="Slots of all ranks; default: one for each expert."),
        click.option("--redundant", type=click.IntRange(0, MOST), help="Or: slots beside one for each expert."),
        click.option("--nodes", type=count, default=1, show_default=True, help="Nodes that the ranks are on."),
        click.option("--groups", type=count, default=1, show_default=True, help="Groups that routers choose between."),
        click.option("--balancer", metavar="NAME", default="deepseek", show_default=True, help="Any that is offered."),
        click.option("--budget", type=Number(0, min_open=True), help="incremental: moves, or their share of slots."),
        click.option("--target", type=Number(1), help="incremental: the max/mean to come down to."),
    ):
        command = option(command)
    return command


def alone(name: str) -> Place:
    """What a balancer is made with where no engine is."""
    return Place(name, "cpu", lambda: Path(tempfile.mkdtemp(prefix="stepwell-")))


def topology_of(
    layers: int, experts: int, ranks: int, slots: int | None, redundant: int | None, nodes: int, groups: int
) -> Topology:
    """What the options say; ConfigError where that does not divide."""
    if slots is not None and redundant is not None and slots != experts + redundant:
        raise ConfigError(f"--slots {slots} and --redundant {redundant} disagree for {experts} experts; give one")
    total = slots if slots is not None else experts + (redundant or 0)
    if total % ranks:
        if total < experts:
            raise ConfigError(f"{total} slots are fewer than {experts} experts, each of which needs one")
        more = -total % ranks + total - experts
        raise ConfigError(f"{total} slots do not divide over {ranks} ranks; --redundant {more} would")
    topology = Topology(ranks, total // ranks, nodes, groups)
    check_topology(experts, topology)
    if layers * ranks * experts > MOST_CELLS or layers * total > MOST_CELLS:
        raise ConfigError(f"{layers} layers of {experts} experts on {ranks} ranks are too many to plan at once")
    return topology


def balancer_of(name: str, budget: float | None, target: float | None) -> Balancer:
    """The balancer of that name, with these settings; ConfigError where it has no such setting."""
    offer = read_config(None).load_plugins().offer("balance", name)
    given = {key: value for key, value in (("budget", budget), ("target", target)) if value is not None}
    unknown = sorted(set(given) - {one.name for one in fields(offer.config)})
    if unknown:
        raise ConfigError(f"--{unknown[0]}: {name} has no such setting; --balancer incremental has")
    made: Balancer = offer.make(offer.config(**given), alone(name))
    return made


def in_order(layers: int, experts: int, topology: Topology) -> Placement:
    """Each expert once, in order; then, in the slots that are left, again: where experts stand before any plan."""
    row = np.arange(topology.slots) % experts
    return Placement(np.tile(row, (layers, 1)).astype(np.int32))
