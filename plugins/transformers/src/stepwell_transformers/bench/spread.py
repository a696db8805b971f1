"""A model over several ranks against the same model on one: prompts, decode steps, sums, and how far logits are off."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from stepwell import ConfigError
from stepwell_kernels.bench.processes import outputs
from stepwell_transformers.bench.options import Setup
from stepwell_transformers.bench.report import about, ms, progress, show
from stepwell_transformers.bench.spread_rank import Asked, Found

PROMPTS, POINTS, SUMS = (8192,), ((1, 2048), (64, 2048)), (1, 4, 16, 64, 128, 256, 512, 2048)
SMALL_PROMPTS, SMALL_POINTS, SMALL_SUMS = (64,), ((1, 32), (4, 32)), (1, 8)
COLUMNS = {
    "what": "what",
    "ranks": "ranks",
    "sums": "sums",
    "ms": "ms",
    "one_ms": "on one rank",
    "ratio": "times as fast",
}
SUM_COLUMNS = {
    "rows": "rows",
    "plain_us": "torch.distributed us",
    "own_us": "ours",
    "ratio": "times as fast",
    "plain_norm_us": "with residual and norm us",
    "own_norm_us": "ours",
    "norm_ratio": "times as fast",
}
LOGIT_COLUMNS = {
    "what": "logits against one rank's",
    "prompts": "prompts",
    "same_most_likely": "same most likely",
    "cosine": "cosine",
    "largest_difference": "largest difference",
    "of_their_deviation": "of their deviation",
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to measure."""

    ranks: int
    prompts: Sequence[int]
    points: Sequence[tuple[int, int]]
    steps: int
    sums: Sequence[int]
    compared: int
    """Prompts whose logits are compared."""


def run(setup: Setup, wanted: Wanted, as_json: bool) -> None:
    """Measure and print."""
    if setup.settings.device == "cuda" and (there := torch.cuda.device_count()) < wanted.ranks:
        raise ConfigError(f"--tp: {wanted.ranks} ranks need as many CUDA devices, and this machine has {there}")
    with tempfile.TemporaryDirectory(prefix="stepwell-spread-") as folder:
        files = [Path(folder) / f"logits-{name}.npy" for name in ("one", "unfused", "several")]
        one = _measured(setup, wanted, 1, True, Path(folder), files[:2])
        ways = [True] if setup.small else [False, True]
        several = {way: _measured(setup, wanted, wanted.ranks, way, Path(folder), files[2:]) for way in ways}
        alone, unfused, spread = (np.load(file) for file in files)
        logits = [{"what": f"{wanted.ranks} ranks"} | compare(alone, spread)]
        logits += [{"what": "one rank, nothing fused"} | compare(alone, unfused)]
    rows = [row for way, found in several.items() for row in against(wanted, one, found, _named(setup, way))]
    sums = [_with_ratios(row) for row in several[True].sums]
    device = torch.device(setup.settings.device)
    result = {"bench": "spread", "model": setup.settings.model, "ranks": wanted.ranks, **about(device)}
    show(result | {"logits": logits, "rows": rows, "sums": sums}, COLUMNS, rows, as_json)
    if not as_json:
        show({}, SUM_COLUMNS, sums, as_json)
        show({}, LOGIT_COLUMNS, logits, as_json)


def against(wanted: Wanted, one: Found, found: Found, sums: str) -> list[dict[str, Any]]:
    """A row for each thing that was timed on one rank and on all."""
    names = [f"prompt of {length}" for length in wanted.prompts]
    names += [f"decode {batch} x {context}" for batch, context in wanted.points]
    alone = [*(one.prefill[length] for length in wanted.prompts), *one.decode]
    together = [*(found.prefill[length] for length in wanted.prompts), *found.decode]
    return [
        {"what": name, "ranks": wanted.ranks, "sums": sums, "ms": ms(many), "one_ms": ms(single)}
        | {"ratio": round(single / many, 3)}
        for name, single, many in zip(names, alone, together, strict=True)
    ]


def compare(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> dict[str, float]:
    """How far logits [prompts, vocab] are from those of one rank."""
    apart = float(np.abs(one - other).max())
    lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    return {
        "prompts": len(one),
        "same_most_likely": round(float((one.argmax(1) == other.argmax(1)).mean()), 4),
        "cosine": round(float(((one * other).sum(1) / lengths).min()), 6),
        "largest_difference": round(apart, 5),
        "of_their_deviation": round(apart / float(one.std()), 5),
    }


def _with_ratios(row: Mapping[str, float]) -> dict[str, float]:
    rounded = {name: round(value, 2) for name, value in row.items()} | {"rows": int(row["rows"])}
    ratios = {
        "ratio": round(row["plain_us"] / row["own_us"], 2),
        "norm_ratio": round(row["plain_norm_us"] / row["own_norm_us"], 2),
    }
    return rounded | ratios


def _named(setup: Setup, one_shot: bool) -> str:
    return "gloo" if setup.small else "one-shot" if one_shot else "NCCL"


def _measured(setup: Setup, wanted: Wanted, ranks: int, one_shot: bool, folder: Path, logits: list[Path]) -> Found:
    """What was asked of so many ranks; logits once, of the last way to sum."""
    progress(f"{setup.settings.model} on {ranks} {'rank' if ranks == 1 else 'ranks'}, {_named(setup, one_shot)}")
    meet = (folder / f"meet-{ranks}-{one_shot}").as_uri()
    asked = [
        Asked(
            setup.settings.model,
            setup.settings.device,
            setup.page_size,
            setup.rounds,
            tuple(setup.sets),
            rank,
            ranks,
            meet,
            one_shot,
            tuple(wanted.prompts),
            tuple(wanted.points),
            wanted.steps,
            tuple(wanted.sums) if one_shot else (),
            tuple(map(str, logits)) if one_shot else (),
            wanted.compared,
        )
        for rank in range(ranks)
    ]
    return started(asked, folder)


def started(asked: Sequence[Asked], folder: Path) -> Found:
    """Ranks as processes; what the first has found."""
    first, *_ = outputs("stepwell_transformers.bench.spread_rank", asked, folder)
    return msgspec.json.decode(first, type=Found)
