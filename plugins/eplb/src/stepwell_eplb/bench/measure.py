"""Speed and quality of the balancers beside the published algorithm, in the same run."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import numpy as np

from stepwell import Placement, Topology
from stepwell_eplb.bench.published import rebalance
from stepwell_eplb.cli.options import alone
from stepwell_eplb.cli.quality import unevenness
from stepwell_eplb.deepseek import Deepseek, DeepseekConfig
from stepwell_eplb.draw import SORTS, draw, drifted
from stepwell_eplb.greedy import Ints
from stepwell_eplb.incremental import Incremental, IncrementalConfig
from stepwell_eplb.solve import Shape, solve


@dataclass(frozen=True, slots=True)
class Speed:
    """Milliseconds of processor time, medians of rounds in which both take turns."""

    ranks: int
    nodes: int
    ours_ms: float
    published_ms: float
    ratio: float


@dataclass(frozen=True, slots=True)
class Quality:
    """max/mean, the mean over layers and that of the worst layer."""

    sort: str
    ranks: int
    published: float
    published_worst: float
    ours: float
    ours_worst: float
    above: int
    """Layers whose hottest rank has more to do than after the published algorithm."""


@dataclass(frozen=True, slots=True)
class Repair:
    """What few moves make of a placement whose loads have drifted."""

    sort: str
    ranks: int
    stale: float
    after: float
    after_worst: float
    moved: float
    """Share of all slots."""
    anew: float
    """max/mean, had all been placed anew."""
    anew_moved: float
    ms: float


def speed(load: Ints, slots: int, ranks: int, nodes: int, groups: int, rounds: int) -> Speed:
    """One warm-up, then rounds."""
    shape = Shape(slots, ranks, nodes, groups) if groups % nodes == 0 else Shape(slots, ranks)
    ours, published = list[float](), list[float]()
    for round in range(rounds + 1):
        times = _ms(lambda: solve(load, shape)), _ms(lambda: rebalance(load, slots, groups, nodes, ranks))
        if round:
            ours.append(times[0])
            published.append(times[1])
    mine, theirs = median(ours), median(published)
    return Speed(ranks, nodes, round_(mine), round_(theirs), round_(theirs / mine))


def quality(sort: str, seed: int, layers: int, experts: int, slots: int, ranks: int) -> Quality:
    """Both on the same load, anywhere."""
    load = draw(sort, seed, layers, experts)
    theirs = unevenness(load, Placement(rebalance(load, slots, 1, 1, ranks).astype(np.int32)), ranks)
    mine = unevenness(load, _deepseek().place(load, Topology(ranks, slots // ranks), None), ranks)
    above = int((mine > theirs * (1 + 1e-9)).sum())
    return Quality(sort, ranks, *map(_short, (theirs.mean(), theirs.max(), mine.mean(), mine.max())), above)


def repair(sort: str, seed: int, layers: int, experts: int, slots: int, ranks: int) -> Repair:
    """Placed for one load, repaired for what became of it."""
    load, topology = draw(sort, seed, layers, experts), Topology(ranks, slots // ranks)
    before = _deepseek().place(load, topology, None)
    later = drifted(load, seed + 1)
    begin = time.process_time()
    after = Incremental(IncrementalConfig(), alone("incremental")).place(later, topology, before)
    ms = (time.process_time() - begin) * 1e3
    anew = _deepseek().place(later, topology, before)
    stale, now, best = (unevenness(later, placement, ranks) for placement in (before, after, anew))
    moved = [float((one.experts != before.experts).mean()) for one in (after, anew)]
    found = (stale.mean(), now.mean(), now.max(), moved[0], best.mean(), moved[1])
    return Repair(sort, ranks, *map(_short, found), round_(ms))


def sorts() -> tuple[str, ...]:
    """Names of loads."""
    return tuple(SORTS)


def _deepseek() -> Deepseek:
    return Deepseek(DeepseekConfig(), alone("deepseek"))


def _ms(work: Callable[[], object]) -> float:
    begin = time.process_time()
    work()
    return (time.process_time() - begin) * 1e3


def round_(number: float) -> float:
    """As much of it as means anything."""
    return round(float(number), 2)


def _short(number: float) -> float:
    return round(float(number), 4)
