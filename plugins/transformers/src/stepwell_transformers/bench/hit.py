"""Time to the first token of a prompt whose prefix is in host memory, against computing all of it, through the engine.

The device has room for one prompt, so that each pushes out the one before, which `write_through` has put into host
memory by then: a prefix is asked for, another prompt is computed, and then the prefix comes back.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np

from stepwell import Cached, StepwellError
from stepwell.api import Engine
from stepwell.cli.options import read_config
from stepwell_transformers.bench import ceilings as ceiling
from stepwell_transformers.bench.arithmetic import hit_bound, prefill_flops
from stepwell_transformers.bench.options import Setup
from stepwell_transformers.bench.report import about, ms, progress, show
from stepwell_transformers.bench.weigh import weigh
from stepwell_transformers.locate import locate

LENGTHS = (8192, 32768)
SMALL = (64, 256)
PATIENCE_S = 60.0
COLUMNS = {
    "prefix": "prefix",
    "suffix": "suffix",
    "hit_ms": "hit ms",
    "compute_ms": "computed ms",
    "ratio": "times sooner",
    "allowed": "link and FLOPs allow",
    "share": "share",
}


def run(setup: Setup, lengths: Sequence[int], suffix: int, as_json: bool) -> None:
    """Measure and print."""
    rows, result = [], {"bench": "hit", "model": setup.settings.model, "page": setup.page_size}
    for length in lengths:
        found = _Prefix(setup, length // setup.page_size * setup.page_size, suffix).measure()
        rows.append(found.pop("row"))
        result |= found
    show({**result, "rows": rows}, COLUMNS, rows, as_json)


class _Prefix:
    """Prompts of one length."""

    def __init__(self, setup: Setup, length: int, suffix: int) -> None:
        self._setup, self._length, self._suffix = setup, length, suffix
        self._random = np.random.default_rng(length)
        pages = -(-(length + suffix + 1) // setup.page_size)
        self._sets = {
            "runner.use": "transformers",
            "runner.model": setup.settings.model,
            "runner.device": setup.settings.device,
            "cache.page_size": setup.page_size,
            "cache.device_pages": pages,
            "cache.host_pages": pages * 3,
            "cache.typical_tokens": length,
            "write.use": "write_through",
        }

    def measure(self) -> dict[str, Any]:
        """The row, and what the engine and its device are."""
        import torch

        from stepwell_transformers.bench.rig import read
        from stepwell_transformers.runner import pick_device

        setup, device = self._setup, pick_device(self._setup.settings.device)
        times: dict[str, list[float]] = defaultdict(list)
        progress(f"starting an engine for prefixes of {self._length} tokens")
        with Engine(self._sets, sets=setup.sets) as engine:
            for turn in range(setup.rounds + 1):
                kept = self._tokens(self._length)
                self._ask(engine, kept)
                computed, cached = self._ask(engine, self._tokens(self._length + self._suffix))
                if cached.total:
                    raise StepwellError(f"a new prompt found {cached.total} of its tokens cached")
                came, cached = self._ask(engine, kept + self._tokens(self._suffix))
                # The pages at its beginning leave the device last, and one or two may still be there.
                if cached.total < self._length or cached.device > 2 * setup.page_size:
                    raise StepwellError(
                        f"of {self._length} tokens {cached.host} came from host, {cached.device} from device"
                    )
                progress(f"turn {turn}: {self._length} tokens: computed {ms(computed)} ms, from host {ms(came)} ms")
                if turn:
                    times["hit"].append(came)
                    times["computed"].append(computed)
        hit, computed = median(times["hit"]), median(times["computed"])
        folder = locate(setup.settings.model, setup.settings.revision, read_config(None, setup.sets).cache_dir)
        dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
        limits, weights, (shape, heads) = ceiling.measure(device, dtype), weigh(folder, dtype.itemsize), read(folder)
        groups = shape.groups(dtype.itemsize)
        copy_bytes = sum(g.token_bytes * (self._length - g.need.lo(self._length)) for g in groups)
        flops = [
            prefill_flops(weights, shape, heads, start, self._length + self._suffix - start)
            for start in (0, self._length)
        ]
        allowed = hit_bound(
            flops[0] / limits.matrix_flops, flops[1] / limits.matrix_flops, copy_bytes / limits.h2d_bytes_s
        )
        ratio = computed / hit
        row = {"prefix": self._length, "suffix": self._suffix, "hit_ms": ms(hit), "compute_ms": ms(computed)}
        row |= {"ratio": round(ratio, 2), "allowed": round(allowed, 2), "share": round(ratio / allowed, 3)}
        row |= {"copy_floor_ms": ms(copy_bytes / limits.h2d_bytes_s), "rounds": len(times["hit"])}
        return {"row": row, **about(device), "ceilings": limits.figures()}

    def _ask(self, engine: Engine, prompt: list[int]) -> tuple[float, Cached]:
        """Seconds to the first token, and where the others came from; returns when all is saved."""
        start = time.perf_counter()
        done = engine.generate(prompt, max_tokens=1, ignore_eos=True)
        took = time.perf_counter() - start
        self._wait_for_saves(engine)
        return took, done.cached

    def _wait_for_saves(self, engine: Engine) -> None:
        deadline, before = time.monotonic() + PATIENCE_S, -1.0
        while time.monotonic() < deadline:
            now = float(str(engine.stats()["bytes_saved"]))
            if now == before:
                return
            before = now
            time.sleep(0.1)
        raise StepwellError("saves to host memory do not end")

    def _tokens(self, count: int) -> list[int]:
        found: list[int] = self._random.integers(0, 256, count).tolist()
        return found
