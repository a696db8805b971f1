"""`stepwell bench index`: what a match, a publish and an eviction cost, next to a bare walk of the same tree.

Clocks of shared machines vary by half, so ratios decide: everything that is compared takes turns within one run, and
medians of many turns are reported, in processor time, so that a turn does not count what others ran meanwhile. The bare
walk looks up a child by its first page and compares its tokens, no more.
"""

from __future__ import annotations

import gc
import json
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from stepwell.abc.retain import RetentionPolicy
from stepwell.abc.write import Cause, Decision, Edge, WritePolicy
from stepwell.cache.audit import nodes as all_nodes
from stepwell.cache.cache import Cache, CacheShape, Lease
from stepwell.cache.node import DEVICE, Node
from stepwell.cache.recency import Recency
from stepwell.types import TOKEN_BYTES, Full, GroupSpec, Tier, Window

PAGE = 16
TOKENS = 65536
NAMESPACE = bytes(32)
GROUPS = (
    GroupSpec("full", Full(), 1, (0,)),
    GroupSpec("near", Window(1023), 1, (1,)),
    GroupSpec("far", Window(4095), 1, (2,)),
)
NODES = (16, 256)
COLD_PATHS = 120
APART = 2_000_000_000
"""A token that no prompt has."""
BUDGETS = {
    "match 16 nodes, full group": 1.3,
    "match 256 nodes, full group": 0.8,
    "match, each further group": 0.15,
    "match that falls back, each further group": 0.15,
    "match cold": 1.5,
    "publish, ns a page and group": 100.0,
    "publish, us a call": 30.0,
    "evict, ns a page from 8 pages": 1000.0,
    "evict, ns a page from one-page nodes": 4000.0,
}


class _Never(WritePolicy):
    def decide(self, edge: Edge, cause: Cause, uses: int) -> Decision:
        return Decision.NEVER


class _All(RetentionPolicy):
    """Keeps the windows at all lengths that were asked for, so that nothing is found less of."""

    def keep(self, length: int, page: int, branches: Sequence[int]) -> Sequence[int]:
        return (length - page, length)


class _Ends(RetentionPolicy):
    """Keeps a long prompt's windows at its end and in its middle, nothing else."""

    def keep(self, length: int, page: int, branches: Sequence[int]) -> Sequence[int]:
        return (length // 2, length - page, length) if length == TOKENS else ()


def _cache(groups: int, pages: int, retain: RetentionPolicy | None = None) -> Cache:
    return Cache(
        CacheShape(GROUPS[:groups], PAGE, (pages,) * groups, (0,) * groups),
        evict=lambda tier, group: Recency(),
        write=_Never(),
        retain=retain or _All(),
    )


def _tokens(path: int, count: int = TOKENS) -> bytes:
    return array("i", range(path * count, (path + 1) * count)).tobytes()


def _insert(cache: Cache, tokens: bytes) -> None:
    length = len(tokens) // TOKEN_BYTES
    lease = cache.admit(NAMESPACE, tokens, lambda found: length)
    if lease is None:
        raise RuntimeError("the bench's pool is too small")
    cache.publish(lease, tokens, final=True)
    cache.close(lease)


def _plant(cache: Cache, path: int, nodes: int) -> bytes:
    """A prompt that lies over so many nodes, each of which has a second child."""
    tokens = _tokens(path)
    _insert(cache, tokens)
    apart = len(tokens) // nodes
    for cut in range(apart, len(tokens), apart):
        _insert(cache, tokens[:cut] + array("i", [APART + path] * PAGE).tobytes())
    return tokens + bytes(TOKEN_BYTES)


def _walk(cache: Cache, tokens: bytes) -> int:
    """The bare walk."""
    node: Node = cache._index.roots[NAMESPACE]
    step = PAGE * TOKEN_BYTES
    at = 0
    startswith = tokens.startswith
    while True:
        child = node.children.get(tokens[at : at + step])
        if child is None or not startswith(child.edge, at):
            return at
        at = child.end
        node = child


Timed = tuple[Callable[[Cache, bytes], object], Cache, Sequence[bytes]]


def _turns(work: dict[str, Timed], rounds: int, calls: int) -> dict[str, list[float]]:
    """Microseconds a call of each piece of work, by turn; all take turns."""
    took: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(rounds):
        for name, (call, cache, prompts) in work.items():
            begin = time.thread_time_ns()
            for number in range(calls):
                call(cache, prompts[number % len(prompts)])
            took[name].append((time.thread_time_ns() - begin) / calls / 1000)
    return took


def _ratio(row: dict[str, list[float]], over: str, to: str, less: str | None = None) -> float:
    """The median over turns of one time, perhaps less another, over a third: what disturbs a turn disturbs all."""
    lessened = row[less] if less is not None else [0.0] * len(row[over])
    return median((a - c) / b for a, b, c in zip(row[over], row[to], lessened, strict=True))


def _match(cache: Cache, tokens: bytes) -> object:
    return cache.match(NAMESPACE, tokens)


@dataclass(frozen=True, slots=True)
class Warm:
    """A match of one prompt, again and again, in trees of one to three groups."""

    floor: float
    times: dict[str, float]
    """Median microseconds by number of groups."""
    ratio: float
    """The full group alone to the bare walk of the same tree."""
    added: tuple[float, float]
    """What the second and the third group add, as shares of the full group alone."""


def _warm(nodes: int, quick: bool) -> Warm:
    tokens = b""
    work: dict[str, Timed] = {}
    for groups in (1, 2, 3):
        cache = _cache(groups, 6000)
        planted = _plant(cache, 0, nodes)
        tokens = tokens or planted
        if groups == 1:
            work["floor"] = (_walk, cache, [tokens])
        found = cache.match(NAMESPACE, tokens)
        if found.length != TOKENS or _walk(cache, tokens) != TOKENS * TOKEN_BYTES:
            raise RuntimeError("the bench's prompt is not found whole")
        work[str(groups)] = (_match, cache, [tokens])
    rounds, calls = (20, 50) if quick else (100, 50)
    alone = _turns({name: work[name] for name in ("floor", "1")}, rounds, calls)
    grouped, added = _by_groups(work, rounds, calls)
    return Warm(median(alone["floor"]), grouped | {"1": median(alone["1"])}, _ratio(alone, "1", "floor"), added)


def _by_groups(work: dict[str, Timed], rounds: int, calls: int) -> tuple[dict[str, float], tuple[float, float]]:
    """Median microseconds by number of groups, and what the second and the third add, as shares of the first alone."""
    # Two at a time: three trees together do not stay in a small cache, and none of them would be warm.
    second, third = (_turns({"1": work["1"], more: work[more]}, rounds, calls) for more in ("2", "3"))
    two = _ratio(second, "2", "1", less="1")
    times = {"1": median(second["1"]), "2": median(second["2"]), "3": median(third["3"])}
    return times, (two, _ratio(third, "3", "1", less="1") - two)


@dataclass(frozen=True, slots=True)
class Gone:
    """A match where pressure took window pages: median microseconds by number of groups, and what groups add."""

    times: dict[str, float]
    added: tuple[float, float]


def _tombstoned(nodes: int, quick: bool) -> dict[str, Gone]:
    """A match of one prompt, again and again, after pressure on the pools of windows.

    `interior`: nothing is left of the windows but those at the end and in the middle, all is usable. `half`: a page of
    those at the end is gone as well, so the match falls back to the middle. `none`: no window is left. The full group
    alone, which finds all in any case, is what they are compared with.
    """
    caches = {str(groups): _cache(groups, 6000, _Ends()) for groups in (1, 2, 3)}
    (tokens,) = {_plant(cache, 0, nodes) for cache in caches.values()}
    work: dict[str, Timed] = {groups: (_match, cache, [tokens]) for groups, cache in caches.items()}
    took = {}
    for name, usable in (("interior", TOKENS), ("half", TOKENS // 2), ("none", 0)):
        for groups, cache in caches.items():
            if name != "interior":
                _lose_a_page(cache, nodes if name == "half" else nodes // 2)
            _bury_the_dead(cache)
            if cache.match(NAMESPACE, tokens).length != (usable if groups != "1" else TOKENS):
                raise RuntimeError("the bench's windows do not end where they should")
        took[name] = Gone(*_by_groups(work, *((20, 50) if quick else (100, 50))))
    return took


def _path(cache: Cache) -> list[Node]:
    """The nodes of the first prompt."""
    index = cache._index
    root = index.roots[NAMESPACE]
    return index.path(index.walk(root, _tokens(0))[1], root)


def _lose_a_page(cache: Cache, nodes: int) -> None:
    """Take a page that the windows which end with so many nodes of the first prompt, and a page below, all need."""
    node = _path(cache)[nodes - 1]
    for group in range(1, len(cache.shape.groups)):
        cache._index.cut(DEVICE, node, group, np.array([node.pages - 2]))
    cache._index.settle()


def _bury_the_dead(cache: Cache) -> None:
    """Take the window pages that no retained length needs."""
    for group in range(1, len(cache.shape.groups)):
        runs = [node.runs[group] for node in all_nodes(cache._index)]
        kept = sum(sum(run.kept) for run in runs if run is not None)
        cache._evictor.evict(DEVICE, group, cache.usage()[Tier.DEVICE][group].tree_only - kept)


def _cold(nodes: int, quick: bool) -> dict[str, list[float]]:
    paths = COLD_PATHS // 30 if quick else COLD_PATHS
    cache = _cache(3, paths * (TOKENS // PAGE + 300))
    prompts = [_plant(cache, path, nodes) for path in range(paths)]
    work: dict[str, Timed] = {"floor": (_walk, cache, prompts), "3": (_match, cache, prompts)}
    return _turns(work, 3 if quick else 7, len(prompts))


def _publish(groups: int, quick: bool) -> tuple[float, float]:
    """Microseconds a call, and nanoseconds a new page and group beyond it."""
    took: dict[int, list[float]] = {16: [], 64: [], 256: []}
    for turn in range(4 if quick else 20):
        cache = _cache(groups, TOKENS // PAGE)
        tokens = _tokens(turn)
        lease = cache.admit(NAMESPACE, tokens, lambda found: TOKENS)
        assert isinstance(lease, Lease)
        at = 0
        for pages in [*took] * (TOKENS // PAGE // sum(took)):
            at += pages * PAGE * TOKEN_BYTES
            part = tokens[:at]
            begin = time.thread_time_ns()
            cache.publish(lease, part)
            took[pages].append((time.thread_time_ns() - begin) / 1000)
    few, many = median(took[16]), median(took[256])
    slope = (many - few) / (256 - 16)
    return few - 16 * slope, 1000 * slope / groups


def _evict(pages: int, batch: int, groups: int, quick: bool) -> float:
    """Nanoseconds a page of the full group, from nodes of so many pages."""
    total = 1024 if quick else 4096
    took = []
    for _ in range(1 if quick else 3):
        cache = _cache(groups, total)
        for path in range(total // pages):
            _insert(cache, _tokens(path, pages * PAGE))
        for _ in range(total // batch // 2):
            begin = time.thread_time_ns()
            freed = cache._evictor.evict(DEVICE, 0, batch)
            took.append((time.thread_time_ns() - begin) / freed)
    return median(took)


@contextmanager
def _quiet() -> Iterator[None]:
    """No collection while the clock runs."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def measure(quick: bool = False) -> dict[str, object]:
    """Measure everything; `quick`: fewer turns, for a look."""
    with _quiet():
        warm = {nodes: _warm(nodes, quick) for nodes in NODES}
        tombstoned = {nodes: _tombstoned(nodes, quick) for nodes in NODES}
        cold = {nodes: _cold(nodes, quick) for nodes in NODES}
        published = {groups: _publish(groups, quick) for groups in (1, 3)}
        evicted = {
            f"{pages} pages, {batch} at once, {groups} groups": _evict(pages, batch, groups, quick)
            for pages, batch, groups in ((64, 256, 1), (8, 64, 1), (8, 64, 3), (1, 64, 1), (1, 64, 3))
        }
    reached = {
        "match 16 nodes, full group": warm[16].ratio,
        "match 256 nodes, full group": warm[256].ratio,
        "match, each further group": max(share for row in warm.values() for share in row.added),
        "match that falls back, each further group": max(
            share for row in tombstoned.values() for share in row["half"].added
        ),
        "match cold": max(_ratio(row, "3", "floor") for row in cold.values()),
        "publish, ns a page and group": max(slope for _, slope in published.values()),
        "publish, us a call": max(fixed for fixed, _ in published.values()),
        "evict, ns a page from 8 pages": evicted["8 pages, 64 at once, 3 groups"],
        "evict, ns a page from one-page nodes": evicted["1 pages, 64 at once, 3 groups"],
    }
    return {
        "match_us": {str(nodes): row.times for nodes, row in warm.items()},
        "floor_us": {str(nodes): row.floor for nodes, row in warm.items()},
        "ratios": {str(nodes): {"1": row.ratio, "2": row.added[0], "3": row.added[1]} for nodes, row in warm.items()},
        "tombstoned_us": {
            str(nodes): {name: row.times for name, row in rows.items()} for nodes, rows in tombstoned.items()
        },
        "tombstoned_ratios": {
            str(nodes): {name: {"2": row.added[0], "3": row.added[1]} for name, row in rows.items()}
            for nodes, rows in tombstoned.items()
        },
        "cold_us": {str(nodes): {g: median(row[g]) for g in ("floor", "3")} for nodes, row in cold.items()},
        "publish_ns_per_page": published[1][1],
        "publish": {
            str(g): {"call_us": fixed, "ns_per_page_and_group": slope} for g, (fixed, slope) in published.items()
        },
        "evict_ns_per_page": evicted["8 pages, 64 at once, 1 groups"],
        "evict": evicted,
        "budgets": {
            name: {"reached": reached[name], "budget": budget, "met": reached[name] <= budget}
            for name, budget in BUDGETS.items()
        },
    }


def _show(result: dict[str, object]) -> None:
    console = Console()
    times = Table("64k-token match, us", "bare walk", "1 group", "2", "3", title="Warm, page 16")
    match, floor = result["match_us"], result["floor_us"]
    assert isinstance(match, dict) and isinstance(floor, dict)
    for nodes, row in match.items():
        times.add_row(f"{nodes} nodes", f"{floor[nodes]:.1f}", *(f"{row[g]:.1f}" for g in ("1", "2", "3")))
    console.print(times)
    windows = Table("64k-token match, us", "1 group", "2", "3", "2nd adds", "3rd", title="Windows partly gone")
    gone, shares = result["tombstoned_us"], result["tombstoned_ratios"]
    assert isinstance(gone, dict) and isinstance(shares, dict)
    for nodes, rows in gone.items():
        for name, said in (("interior", "all usable"), ("half", "falls back to half"), ("none", "none usable")):
            added = [f"{share:+.0%}" for share in shares[nodes][name].values()]
            windows.add_row(f"{nodes} nodes, {said}", *(f"{rows[name][g]:.1f}" for g in ("1", "2", "3")), *added)
    console.print(windows)
    budgets = Table("budget", "reached", "allowed", "", title="Budgets")
    verdicts = result["budgets"]
    assert isinstance(verdicts, dict)
    for name, verdict in verdicts.items():
        budgets.add_row(
            name, f"{verdict['reached']:.2f}", f"{verdict['budget']:g}", "met" if verdict["met"] else "missed"
        )
    console.print(budgets)


@click.command("index")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of tables.")
@click.option("--quick", is_flag=True, help="Fewer turns: a look, no measurement.")
def command(as_json: bool, quick: bool) -> None:
    """Match, publish and evict in the prefix tree, next to a bare walk."""
    result = measure(quick)
    if as_json:
        click.echo(json.dumps(result, indent=2))
    else:
        _show(result)
