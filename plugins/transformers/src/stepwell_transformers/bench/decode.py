"""Decode steps at points of batch and context: milliseconds, and share of what memory allows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import median
from typing import Any

import numpy as np

from stepwell import ConfigError
from stepwell_transformers.bench import ceilings as ceiling
from stepwell_transformers.bench.arithmetic import decode_bytes, floor_s
from stepwell_transformers.bench.options import Setup
from stepwell_transformers.bench.report import about, middle, ms, progress, show
from stepwell_transformers.bench.rig import Rig, rigged

POINTS = ((1, 2048), (8, 2048), (64, 2048), (1, 16384), (8, 16384), (64, 8192))
SMALL = ((1, 64), (4, 32))
WARM = 4
FILLED = 256
"""Host pages of each group that hold what device pages are filled with."""
COLUMNS = {
    "fuse": "fuse",
    "graphs": "graphs",
    "batch": "batch",
    "context": "context",
    "ms": "ms/step",
    "least_ms": "least",
    "floor_ms": "floor",
    "share": "share",
    "tokens_s": "tokens/s",
    "against_ms": "generate_batch ms",
    "against_ratio": "times as fast",
}


@dataclass(frozen=True, slots=True)
class Asked:
    """What to measure."""

    points: Sequence[tuple[int, int]]
    steps: int
    fuse: Sequence[str]
    graphs: Sequence[str]
    against: bool
    against_tokens: int
    against_settings: Sequence[str]


def run(setup: Setup, asked: Asked, as_json: bool) -> None:
    """Measure and print."""
    rows: list[dict[str, Any]] = []
    result: dict[str, Any] = {"bench": "decode", "model": setup.settings.model, "page": setup.page_size}
    limits: ceiling.Ceilings | None = None
    for fuse, graphs in product(asked.fuse or (setup.settings.fuse,), asked.graphs or ("",)):
        changed: dict[str, object] = {"fuse": fuse} | ({"graphs": graphs == "on"} if graphs else {})
        variant = setup.changed(**changed)
        progress(f"making {setup.settings.model}, fuse {fuse}, graphs {_graphs(variant)}")
        with rigged(variant.settings, variant.place(), setup.page_size) as rig:
            result |= about(rig.device)
            limits = ceiling.measure(rig.device, rig.dtype).best(limits)
            found = measure(rig, variant, asked)
            limits = ceiling.measure(rig.device, rig.dtype).best(limits)
            said = {"fuse": fuse, "graphs": _graphs(variant), "start_s": round(rig.start_s, 1)}
            rows += [said | row for row in found]
    assert limits is not None
    result["ceilings"] = limits.figures()
    rows = [row | against_floor(row, limits.copy_bytes_s) for row in rows]
    if asked.against:
        from stepwell_transformers.bench.against import generate_batch

        points = [(row["batch"], row["context"]) for row in rows]
        result["against"] = generate_batch(setup, points, asked.against_tokens, asked.against_settings)
        best = {(one["batch"], one["context"]): one["ms"] for one in result["against"] if one.get("best")}
        for row in rows:
            if (row["batch"], row["context"]) in best:
                row["against_ms"] = best[row["batch"], row["context"]]
                row["against_ratio"] = round(row["against_ms"] / row["ms"], 2)
    result["rows"] = rows
    show(result, _columns(asked.against), rows, as_json)


def measure(rig: Rig, setup: Setup, asked: Asked) -> list[dict[str, Any]]:
    """A row a point; the points take turns. One round before them is not counted."""
    new = asked.steps + WARM
    points = [point for point in asked.points if _fits(rig, point, new)]
    if not points:
        raise ConfigError("no point fits into the device's memory: ask for smaller ones with --point")
    needs = [rig.pages_for(batch, context, new) for batch, context in points]
    pages = {group.name: max(need[group.name] for need in needs) for group in rig.groups}
    rig.open(pages, max(batch for batch, _ in points), {name: min(FILLED, count) for name, count in pages.items()})
    progress(f"{rig.nbytes(pages) / 2**30:.1f} GiB of pages are filled")
    steps: dict[tuple[int, int], list[float]] = defaultdict(list)
    rates: dict[tuple[int, int], list[float]] = defaultdict(list)
    for turn in range(setup.rounds + 1):
        for batch, context in points:
            seats = rig.seat(batch, context, new)
            ends = np.array(rig.timed(rig.decodes(seats, context, new)))[WARM:]
            progress(f"turn {turn}: {batch} x {context}: {ms((ends[-1] - ends[0]) / asked.steps)} ms a step")
            if turn:
                steps[batch, context] += np.diff(ends).tolist()
                rates[batch, context].append(asked.steps * batch / (ends[-1] - ends[0]))
    rows = []
    for batch, context in points:
        nbytes = decode_bytes(rig.weights, rig.groups, batch, context + new // 2)
        rows.append(
            {"batch": batch, "context": context, **middle(steps[batch, context]), "bytes": round(nbytes)}
            | {"tokens_s": round(median(rates[batch, context]), 1), "steps": len(steps[batch, context])}
        )
    return rows


def against_floor(row: Mapping[str, Any], bandwidth: float) -> dict[str, float]:
    """Of a row: the least time a step can take, and what share of the time that is; of the mean time, too."""
    floor = floor_s(row["bytes"], bandwidth)
    mean = row["batch"] / row["tokens_s"]
    return {"floor_ms": ms(floor), "share": round(floor * 1e3 / row["ms"], 4), "share_of_mean": round(floor / mean, 4)}


def _fits(rig: Rig, point: tuple[int, int], new: int) -> bool:
    batch, context = point
    if context + new > rig.runner.model.context:
        progress(f"{batch} x {context} is left out: the model's context is {rig.runner.model.context}")
        return False
    pages = rig.pages_for(batch, context, new)
    if not rig.fits(pages):
        progress(f"{batch} x {context} is left out: its pages take {rig.nbytes(pages) / 2**30:.1f} GiB")
        return False
    return True


def _graphs(setup: Setup) -> str:
    graphs = setup.settings.graphs
    return ("on" if graphs else "off") if isinstance(graphs, bool) else ",".join(map(str, graphs))


def _columns(against: bool) -> Mapping[str, str]:
    return {key: head for key, head in COLUMNS.items() if against or not key.startswith("against")}
