"""Prompts, whole and with half of them cached: TFLOP/s, and share of what a large matrix product reaches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import median
from typing import Any

from stepwell_transformers.bench import ceilings as ceiling
from stepwell_transformers.bench.arithmetic import prefill_flops
from stepwell_transformers.bench.options import Setup
from stepwell_transformers.bench.report import about, middle, progress, show
from stepwell_transformers.bench.rig import rigged

LENGTHS = (2048, 8192, 32768)
SMALL = (64, 256)
FILLED = 256
COLUMNS = {
    "tokens": "prompt",
    "cached": "cached",
    "chunk": "chunk",
    "ms": "ms",
    "least_ms": "least",
    "tokens_s": "tokens/s",
    "tflop_s": "TFLOP/s",
    "share": "share",
}


def run(setup: Setup, lengths: Sequence[int], as_json: bool) -> None:
    """Measure and print."""
    progress(f"making {setup.settings.model}")
    with rigged(setup.settings, setup.place(), setup.page_size) as rig:
        chunk, page = rig.runner.preferred_chunk, rig.page_size
        cases = [(length, cached) for length in lengths for cached in (0, length // 2 // page * page)]
        needs = [rig.pages_for(1, cached, length - cached) for length, cached in cases]
        pages = {group.name: max(need[group.name] for need in needs) for group in rig.groups}
        rig.open(pages, 1, {name: min(FILLED, count) for name, count in pages.items()})
        before = ceiling.measure(rig.device, rig.dtype)
        times: dict[tuple[int, int], list[float]] = defaultdict(list)
        for turn in range(setup.rounds + 1):
            for length, cached in cases:
                (seat,) = rig.seat(1, cached, length - cached)
                ends = rig.timed(rig.chunks(seat, cached, length - cached, chunk))
                progress(f"turn {turn}: {length} tokens, {cached} cached: {(ends[-1] - ends[0]) * 1e3:.2f} ms")
                if turn:
                    times[length, cached].append(ends[-1] - ends[0])
        limits = ceiling.measure(rig.device, rig.dtype).best(before)
        rows: list[dict[str, Any]] = []
        for length, cached in cases:
            count, took = length - cached, median(times[length, cached])
            rate = prefill_flops(rig.weights, rig.shape, rig.heads, cached, count) / took
            rows.append(
                {"tokens": length, "cached": cached, "chunk": chunk, **middle(times[length, cached])}
                | {
                    "tokens_s": round(count / took),
                    "tflop_s": round(rate / 1e12, 2),
                    "share": round(rate / limits.matrix_flops, 4),
                }
            )
        result = {"bench": "prefill", "model": setup.settings.model, "page": page, **about(rig.device)}
    show(result | {"ceilings": limits.figures(), "rows": rows}, COLUMNS, rows, as_json)
