"""Dispatch backends in turn, each on ranks of its own that are processes of this machine; their times as a table."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import msgspec
import torch

from stepwell import ConfigError, StepwellError
from stepwell.coerce import parts_of
from stepwell.config import Config
from stepwell_kernels.bench.dispatch_rank import Asked, Batches, Found
from stepwell_kernels.bench.processes import outputs
from stepwell_kernels.bench.report import about, progress, show

MOST_BYTES = 32 << 30
COLUMNS = {
    "backend": "backend",
    "format": "format",
    "tokens": "tokens",
    "dispatch_ms": "dispatch ms",
    "dispatch_least_ms": "least",
    "dispatch_gb_s": "GB/s",
    "combine_ms": "combine ms",
    "combine_least_ms": "least",
    "combine_gb_s": "GB/s",
    "both_ms": "both ms",
    "graph_ms": "in a graph",
    "direct_ms": "directly",
    "over_direct": "on top",
    "error": "error",
}


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is measured where nothing is said."""

    lengths: tuple[int, ...]
    hidden: int
    experts: int


SIZES = {"cuda": Sizes((128, 4096), 7168, 256), "cpu": Sizes((16, 256), 1024, 64)}


@dataclass(frozen=True, slots=True)
class Where:
    """Ranks and what they are on."""

    device: str
    ranks: int


def where(device: str | None, ranks: int | None) -> Where:
    """As asked, or what this machine has."""
    there = torch.cuda.device_count()
    device = device or ("cuda" if there >= 2 else "cpu")
    if device == "cuda" and there < (ranks or 1):
        raise ConfigError(f"--device cuda: {ranks or 1} ranks need as many CUDA devices, and this machine has {there}")
    return Where(device, ranks or (there if device == "cuda" else 2))


def chosen(names: Sequence[str], config: Config) -> list[str]:
    """Those named; else all that can run here by themselves. ConfigError for one that cannot."""
    registry = config.load_plugins()
    for name in names:
        registry.offer("dispatch", name)
        config.choose_inside("bench", (name,), "dispatch", registry, name)
    if names:
        return list(names)
    for name, offer in registry.offers("dispatch").items():
        if why := registry.why_not("dispatch", name):
            progress(f"{name}: left out: {why}")
        elif not parts_of(offer.config):
            names = [*names, name]
    return list(names)


def check(place: Where, wanted: Batches) -> None:
    """ConfigError where such batches cannot be."""
    if wanted.experts % place.ranks:
        raise ConfigError(f"--experts: {wanted.experts} do not spread evenly over {place.ranks} ranks")
    if wanted.top_k >= wanted.experts:
        raise ConfigError(f"--top-k: {wanted.top_k} experts of a token are not fewer than --experts {wanted.experts}")
    nbytes = max(wanted.lengths) * wanted.hidden * 4
    if nbytes > MOST_BYTES:
        raise ConfigError(f"--tokens, --hidden: {nbytes / 2**30:.0f} GiB of tokens a rank are more than can be meant")


def run(backends: Sequence[str], place: Where, wanted: Batches, as_json: bool) -> None:
    """Measure and print. ConfigError for batches that cannot be, StepwellError in the end where a backend failed."""
    check(place, wanted)
    rows: list[dict[str, object]] = []
    failed: dict[str, str] = {}
    for backend in backends:
        progress(f"{backend} on {place.ranks} ranks")
        try:
            rows += [row_of(backend, found) for found in _measured(backend, place, wanted)]
        except StepwellError as error:
            failed[backend] = str(error)
            progress(f"{backend}: {error}")
    what = {"bench": "dispatch", "ranks": place.ranks, **msgspec.to_builtins(wanted), **about(place.device)}
    show(what | {"rows": rows, "failed": failed}, COLUMNS, rows, as_json)
    if failed:
        raise StepwellError(f"not measured: {', '.join(failed)}; why is above")


def _measured(backend: str, place: Where, wanted: Batches) -> list[list[Found]]:
    """What each rank found, for each number of tokens."""
    with tempfile.TemporaryDirectory(prefix="stepwell-dispatch-") as folder:
        asked = [
            Asked(backend, place.device, rank, place.ranks, (Path(folder) / "meet").as_uri(), wanted)
            for rank in range(place.ranks)
        ]
        said = outputs("stepwell_kernels.bench.dispatch_rank", asked, Path(folder))
        found = [msgspec.json.decode(text, type=list[Found]) for text in said]
    return [list(ranks) for ranks in zip(*found, strict=True)]


def row_of(backend: str, ranks: Sequence[Found]) -> dict[str, object]:
    """Medians and least of what the slowest rank of each turn took."""

    def slowest(times: Sequence[Sequence[float]]) -> list[float]:
        return [max(turn) for turn in zip(*times, strict=True)]

    one = ranks[0]
    dispatch, combine = slowest([found.dispatch for found in ranks]), slowest([found.combine for found in ranks])
    both = slowest([[a + b for a, b in zip(found.dispatch, found.combine, strict=True)] for found in ranks])
    most = max(found.nbytes for found in ranks)
    row: dict[str, object] = {"backend": backend, "format": one.format, "tokens": one.tokens, "bytes": most}
    for name, times in {"dispatch": dispatch, "combine": combine, "both": both}.items():
        row |= {f"{name}_ms": _ms(median(times)), f"{name}_least_ms": _ms(min(times))}
        row[f"{name}_gb_s"] = round(most * (2 if name == "both" else 1) / median(times) / 1e9, 3)
    if one.graph:
        row["graph_ms"] = _ms(median(slowest([found.graph for found in ranks])))
    if one.direct:
        direct = median(slowest([found.direct for found in ranks]))
        row |= {"direct_ms": _ms(direct), "over_direct": f"{median(both) / direct - 1:+.1%}"}
    return row | {"error": max(found.error for found in ranks)}


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 4)
