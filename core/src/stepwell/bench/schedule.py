"""`stepwell bench schedule`: an order over thousands of waiting requests, and our Python in a step.

The requests of the first half of a trace were served, so that their prompts are in the tree; the last ones of the trace
wait. An order is read as far as an admission pass looks. From scratch: a queue and a memory of probes that know nobody.
1% of the requests: so many, the first of the order, go and as many come. 1% of the tree: so many of its pages are
evicted, least recently used first, and as many are published with prompts of those who wait; what it takes to mark
whom that concerns counts. Medians over rounds, of processor time; no collection of garbage while a clock runs.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from stepwell.abc.schedule import SchedulePolicy
from stepwell.assemble import Place, make
from stepwell.bench.steps import steps
from stepwell.bench.waiters import Make, Waiters
from stepwell.cli.options import read_config, set_option
from stepwell.config import Config
from stepwell.errors import ConfigError
from stepwell.replay.trace import MOONCAKE_BLOCK, load
from stepwell.settings import CORE_SECTIONS
from stepwell.types import TOKEN_BYTES

TARGETS = {"scratch_ms": 70.0, "unchanged_ms": 1.0, "one_percent_ms": 2.0, "publish_ms": 10.0, "step_us": 1000.0}
STEP_WAITING = 1000
"""Requests that wait while steps are measured."""
GENERATED = "generated, sessions that grow by turns"


@contextmanager
def quiet() -> Iterator[None]:
    """No collection while a clock runs."""
    enabled = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if enabled:
            gc.enable()


def prompts_of(trace: Path | None, requests: int, page: int) -> list[bytes]:
    """The prompts of a trace in order of arrival, or those of made-up sessions."""
    if trace is not None:
        return [arrival.tokens() for arrival in load(trace, block=MOONCAKE_BLOCK)]
    dice = np.random.default_rng(0)
    sessions: list[list[int]] = [[0] for _ in range(max(2, requests // 8))]
    prompts, fresh = [], 1
    for _ in range(requests):
        session = sessions[int(dice.integers(len(sessions)))]
        grown = int(dice.integers(1, 12))
        session += range(fresh, fresh + grown)
        fresh += grown
        prompts.append(np.repeat(np.array(session, dtype=np.int32), page).tobytes() + bytes(TOKEN_BYTES))
    return prompts


def measure(
    served: Sequence[bytes], waiting: Sequence[bytes], page: int, least: int, make: Make, rounds: int
) -> dict[str, Any]:
    """Measure one policy's order, without the step."""
    with quiet():
        waiters = Waiters(served, waiting, page, least)
        times = waiters.measure(make, rounds)
    return {
        "served": len(served),
        "nodes": waiters.nodes,
        "pages": waiters.pages,
        "cached_share": waiters.share,
        "scratch_ms": median(times.scratch),
        "unchanged_ms": median(times.unchanged),
        "one_percent_ms": median(times.one_percent),
        "publish_ms": median(times.publish),
        "marks_ms": median(times.marks),
        "affected": median(times.affected),
        "full_match_ms": median(times.full_match),
    }


def _steps(make: Make, ticks: int, running: int) -> dict[str, Any]:
    with quiet():
        return steps(make(), ticks, running, STEP_WAITING)


def maker(config: Config) -> Make:
    """Makes the policy that the config names, as often as one is wanted; a mistake elsewhere in it is one here, too."""
    registry = config.load_plugins()
    for section, settings in CORE_SECTIONS.items():
        config.bind(section, settings)
    choice = config.choose("schedule", "schedule", registry, "fcfs")
    config.finish(registry)
    place = Place(choice.offer.name, "cpu", lambda: config.cache_dir)
    return lambda: make(choice, SchedulePolicy, place)  # type: ignore[type-abstract]


def chosen(policies: Sequence[str], sets: Sequence[str]) -> dict[str, Make]:
    """By name; longest prefix first where nothing is asked for and it is installed."""
    if not policies:
        known = read_config(None).load_plugins().offers("schedule")
        policies = ["lpm" if "lpm" in known else "fcfs"]
    return {name: maker(read_config(None, sets, {"schedule.use": name})) for name in dict.fromkeys(policies)}


def _show(result: dict[str, Any]) -> None:
    console = Console()
    console.print(
        f"{result['waiting']} requests wait. Trace: {result['trace']}. Page: {result['page']} tokens.", soft_wrap=True
    )
    for name, row in result["policies"].items():
        title = (
            f"{name}: {row['served']} requests served, {row['nodes']} nodes, {row['pages']} pages; "
            f"{row['cached_share']:.0%} of the waiting tokens are cached"
        )
        table = Table("order of the first 512", "ms", "target", title=title)
        for key, said in (
            ("scratch_ms", "from scratch"),
            ("unchanged_ms", "nothing changed"),
            ("one_percent_ms", "1% of the requests are new"),
            ("publish_ms", f"1% of the tree changed, {row['affected']:.0f} requests affected"),
            ("full_match_ms", "full match of each, and a sort"),
        ):
            table.add_row(said, f"{row[key]:.2f}", f"{TARGETS[key]:g}" if key in TARGETS else "")
        console.print(table)
        table = Table("our Python in a step", "us", "target", title=f"{name}: {row['step_load']}")
        table.add_row("mean", f"{row['step_us']:.0f}", f"{TARGETS['step_us']:g}")
        table.add_row("median", f"{row['step_p50_us']:.0f}", "")
        console.print(table)


@click.command("schedule")
@click.argument("trace", required=False, type=click.Path(path_type=Path))
@click.option(
    "--policy", "policies", multiple=True, metavar="NAME", help="Default: lpm if it is installed. Repeatable."
)
@click.option("--waiting", default=10_000, show_default=True, type=click.IntRange(1), help="Requests that wait.")
@click.option("--served", type=click.IntRange(1), help="Requests whose prompts the tree has, the first.  [half of all]")
@click.option("--page", default=512, show_default=True, type=click.IntRange(1), help="Tokens of a page.")
@click.option("--nodes", default=0, type=click.IntRange(0), help="Grow the tree by branches to so many nodes.")
@click.option("--rounds", default=7, show_default=True, type=click.IntRange(1))
@click.option("--running", default=256, show_default=True, type=click.IntRange(1), help="Requests that run in a step.")
@click.option("--ticks", default=400, show_default=True, type=click.IntRange(1), help="Steps to measure.")
@set_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of tables.")
def command(
    trace: Path | None,
    policies: Sequence[str],
    waiting: int,
    served: int | None,
    page: int,
    nodes: int,
    rounds: int,
    running: int,
    ticks: int,
    sets: Sequence[str],
    as_json: bool,
) -> None:
    """Order thousands of waiting requests, and say what a step costs, beside a full match of each request."""
    makers = chosen(policies, sets)
    prompts = prompts_of(trace, waiting * 6 // 5 + 1, page)
    if len(prompts) <= waiting:
        raise ConfigError(f"{trace}: {len(prompts)} requests are too few for --waiting {waiting}; give it fewer")
    rows = {}
    for name, made in makers.items():
        order = measure(prompts[: served or len(prompts) // 2], prompts[-waiting:], page, nodes, made, rounds)
        rows[name] = order | _steps(made, ticks, running)
    result = {
        "trace": trace.name if trace else GENERATED,
        "waiting": waiting,
        "page": page,
        "targets": TARGETS,
        **next(iter(rows.values())),
        "policies": rows,
    }
    if as_json:
        click.echo(json.dumps(result, indent=2))
    else:
        _show(result)
