"""Working memory of a burst of long prompts, through the engine, at several limits of a step's tokens.

All prompts come at once. A step computes `engine.max_prefill_tokens` of them, so its working memory should follow that
limit and not how many came; "off" lets one step compute them all, which is what there would be without the limit.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Sequence
from itertools import product
from statistics import mean, median
from typing import Any

import numpy as np

from stepwell import StepwellError
from stepwell.api import Engine
from stepwell_transformers.bench.meter import MIB, Meter, metered
from stepwell_transformers.bench.options import Setup
from stepwell_transformers.bench.report import about, ms, progress, show
from stepwell_transformers.runner import pick_device

LIMITS = (512, 2048, 8192, 0)
PROMPTS = (8, 32)
TOKENS = 4096
SMALL_LIMITS = (64, 256, 0)
SMALL_PROMPTS = (4, 8)
SMALL_TOKENS = 256
COLUMNS = {
    "limit": "max_prefill_tokens",
    "prompts": "prompts",
    "tokens": "of tokens",
    "peak_mib": "peak MiB",
    "seconds": "s for all",
    "first_ms": "first token, soonest ms",
    "mean_ms": "mean",
    "last_ms": "latest",
}


def run(setup: Setup, limits: Sequence[int], prompts: Sequence[int], tokens: int, as_json: bool) -> None:
    """Measure and print. A limit of 0: off."""
    device = pick_device(setup.settings.device)
    pages = max(prompts) * -(-(tokens + 1) // setup.page_size)
    progress(f"{setup.settings.model}: each limit and burst with an engine of its own")
    with metered(device) as meter:
        rows = [_Burst(setup, limit, count, tokens, pages).measure(meter) for limit, count in product(limits, prompts)]
    result = {"bench": "burst", "model": setup.settings.model, "page": setup.page_size, **about(device)}
    show({**result, "memory": meter.what, "rows": rows}, COLUMNS, rows, as_json)


class _Burst:
    """So many prompts of one length at one limit; pages for the largest burst, so that all have the same."""

    def __init__(self, setup: Setup, limit: int, count: int, tokens: int, pages: int) -> None:
        self._setup, self._limit, self._count, self._tokens = setup, limit, count, tokens
        self._random = np.random.default_rng(count)
        step = limit or count * tokens
        self._sets = {
            "runner.use": "transformers",
            "runner.model": setup.settings.model,
            "runner.device": setup.settings.device,
            "runner.chunk": step,
            "engine.max_prefill_tokens": step,
            "engine.max_running": count,
            "cache.page_size": setup.page_size,
            "cache.device_pages": pages,
            "cache.typical_tokens": tokens,
        }

    def measure(self, meter: Meter) -> dict[str, Any]:
        """The row."""
        peaks, wholes, firsts = [], [], []
        with Engine(self._sets, sets=self._setup.sets) as engine:
            asyncio.run(self._burst(engine))  # touches all pages, and makes what is made once
            for _ in range(self._setup.rounds):
                engine.flush()
                gc.collect()
                meter.begin()
                took = asyncio.run(self._burst(engine))
                peaks.append(meter.peak() / MIB)
                wholes.append(max(took))
                firsts.append(took)
        limit = self._limit or "off"
        progress(f"{limit}: {self._count} x {self._tokens}: {max(peaks):.1f} MiB, {median(wholes):.2f} s")
        gc.collect()
        return {
            "limit": limit,
            "prompts": self._count,
            "tokens": self._tokens,
            "peak_mib": round(max(peaks), 2),
            "least_peak_mib": round(min(peaks), 2),
            "held_mib": round(meter.held / MIB, 1),
            "seconds": round(median(wholes), 3),
            "first_ms": ms(median(min(took) for took in firsts)),
            "mean_ms": ms(median(mean(took) for took in firsts)),
            "last_ms": ms(median(wholes)),
            "rounds": len(peaks),
        }

    async def _burst(self, engine: Engine) -> list[float]:
        """Seconds to each prompt's token, all asked for at once."""
        prompts = self._random.integers(0, 256, (self._count, self._tokens)).tolist()
        begin = time.perf_counter()

        async def ask(prompt: list[int]) -> float:
            done = await engine.agenerate(prompt, max_tokens=1, ignore_eos=True)
            if done.cached.total:
                raise StepwellError(f"a new prompt found {done.cached.total} of its tokens cached")
            return time.perf_counter() - begin

        return await asyncio.gather(*map(ask, prompts))
