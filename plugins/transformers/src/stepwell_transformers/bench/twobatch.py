"""Two-batch overlap: how much of a link's time hides behind computation, and what that makes of a step.

The link is declared: a dispatcher slowed to rates at which communication takes given shares of the computation.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch

from stepwell import ConfigError
from stepwell_kernels.bench.processes import outputs
from stepwell_transformers.bench.options import Setup
from stepwell_transformers.bench.rated import named
from stepwell_transformers.bench.report import about, ms, progress, show
from stepwell_transformers.bench.twobatch_rank import Asked, Timed

PREFILL, DECODE, RATIOS = (8192,), (128,), (0.25, 0.5, 1.0, 2.0)
SMALL_PREFILL, SMALL_DECODE = (512,), (256,)
COLUMNS = {
    "what": "step",
    "ratio": "communication / computation",
    "gb_per_s": "GB/s",
    "compute_ms": "computation ms",
    "comm_ms": "communication",
    "serial_ms": "one batch",
    "overlap_ms": "two halves",
    "hidden": "hidden",
    "times": "times as fast",
    "halves_ms": "halves' computation",
    "own_hidden": "hidden of theirs",
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to measure."""

    ranks: int
    dispatch: str
    prefill: Sequence[int]
    decode: Sequence[int]
    ratios: Sequence[float]
    steps: int


def run(setup: Setup, wanted: Wanted, as_json: bool) -> None:
    """Measure and print."""
    if setup.settings.device == "cuda" and (there := torch.cuda.device_count()) < wanted.ranks:
        raise ConfigError(f"--ranks: {wanted.ranks} need as many CUDA devices, and this machine has {there}")
    named(wanted.dispatch, setup.sets)
    progress(f"{setup.settings.model} on {wanted.ranks} ranks, {wanted.dispatch}")
    with tempfile.TemporaryDirectory(prefix="stepwell-twobatch-") as folder:
        rows = [figures(found) for found in measured(setup, wanted, Path(folder))]
    device = torch.device(setup.settings.device)
    result = {"bench": "twobatch", "model": setup.settings.model, "ranks": wanted.ranks}
    result |= {"dispatch": wanted.dispatch, **about(device)}
    show(result | {"rows": rows}, COLUMNS, rows, as_json)


def measured(setup: Setup, wanted: Wanted, folder: Path) -> list[Timed]:
    """What the first rank has found."""
    meet = (folder / "meet").as_uri()
    about_all = setup.settings.model, setup.settings.device, setup.page_size, setup.rounds, tuple(setup.sets)
    asked = [
        Asked(
            *about_all,
            rank,
            wanted.ranks,
            meet,
            wanted.dispatch,
            tuple(wanted.prefill),
            tuple(wanted.decode),
            tuple(wanted.ratios),
            wanted.steps,
        )
        for rank in range(wanted.ranks)
    ]
    first, *_ = outputs("stepwell_transformers.bench.twobatch_rank", asked, folder)
    return msgspec.json.decode(first, type=list[Timed])


def figures(found: Timed) -> dict[str, Any]:
    """What communication adds to one batch, and the share of the shorter of both that two halves hide."""
    comm = found.serial - found.compute
    return {
        "what": f"{found.kind} {found.tokens}",
        "ratio": found.ratio,
        "gb_per_s": round(found.gb_per_s, 4),
        "compute_ms": ms(found.compute),
        "comm_ms": ms(comm),
        "serial_ms": ms(found.serial),
        "overlap_ms": ms(found.overlap),
        "hidden": share(found.compute, comm, found.overlap),
        "times": round(found.serial / found.overlap, 3),
        "halves_ms": ms(found.halves),
        "own_hidden": share(found.halves, comm, found.overlap),
    }


def share(compute: float, comm: float, overlap: float) -> float:
    """Of the shorter of computation and communication, what did not add to the time of both together."""
    return round((compute + comm - overlap) / min(compute, comm), 4) if min(compute, comm) > 0 else 0.0
