"""The continuous batching of transformers at the same points: its decode rate, and all of it with its start-up.

It runs the same weights, with the attention that it has without further packages, under each of its settings that may
make it fast; the best one counts. Its cache has exactly the room that the rows need, so that its graphs pad little.
Each prompt is asked once before it is timed, and where that library shares prefixes the timed rows compute only their
last tokens: decoding does not depend on it, and prompts of many rows would take minutes.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig
from transformers.utils import logging

from stepwell import StepwellError
from stepwell_transformers.bench.options import Setup
from stepwell_transformers.bench.report import ms, progress
from stepwell_transformers.locate import locate
from stepwell_transformers.random_weights import wanted
from stepwell_transformers.runner import pick_device, pick_dtype

BLOCK = 256
"""Tokens a page of that library."""
PREFILL = 2048
SETTLE = 6
"""Tokens of each row before it is timed: graphs are captured while they come."""
PATIENCE_S = 240.0
PADDING = 64
CONFIG = {field.name for field in fields(ContinuousBatchingConfig)}
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "eager": {"use_cuda_graph": False, "use_async_batching": False},
    "graphs": {"use_cuda_graph": True, "use_async_batching": False},
    "async": {"use_cuda_graph": True, "use_async_batching": True},
    "compiled": {"use_cuda_graph": True, "use_async_batching": False, "default_compile_level": 1},
}


@dataclass(frozen=True, slots=True)
class Took:
    """A run of all rows of a point."""

    step_s: float
    whole_s: float
    """With start-up, prompts and all."""


def generate_batch(
    setup: Setup, points: Sequence[tuple[int, int]], tokens: int, settings: Sequence[str]
) -> list[dict[str, Any]]:
    """A row for each point and settings; `best` marks the fastest of a point."""
    progress("making the same model for generate_batch")
    model = _model(setup)
    rows: list[dict[str, Any]] = []
    for batch, context in dict.fromkeys(points):
        found: list[dict[str, Any]] = []
        for name in settings:
            row: dict[str, Any] = {"batch": batch, "context": context, "settings": name}
            try:
                took = _run(model, batch, context, tokens + SETTLE, SETTINGS[name])
            except Exception as error:  # that library raises whatever its parts raise; the others go on
                row["error"] = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"
            else:
                rate = batch / took.step_s
                row |= {"ms": ms(took.step_s), "tokens_s": round(rate), "whole_s": round(took.whole_s, 2)}
                found.append(row)
            rows.append(row)
            progress(f"generate_batch {batch} x {context}, {name}: {row.get('ms', row.get('error'))}")
            _free()
        if found:
            min(found, key=lambda row: float(row["ms"]))["best"] = True
    del model
    _free()
    return rows


def _model(setup: Setup) -> Any:
    settings, device = setup.settings, pick_device(setup.settings.device)
    dtype = pick_dtype(settings.dtype, device)
    folder = locate(settings.model, settings.revision, setup.place().state_dir)
    config = AutoConfig.from_pretrained(folder)
    if (random := wanted(settings.model)) is not None:
        model = random.make(config, dtype, device, "sdpa")
    else:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype or "auto", attn_implementation="sdpa").to(
            device
        )
    model.eval().set_attn_implementation(attention())
    return model


def attention() -> str:
    """The fastest that is installed; not one that would be downloaded."""
    for package, name in (("flash_attn_interface", "flash_attention_3"), ("flash_attn", "flash_attention_2")):
        if find_spec(package) is not None:
            return name
    # Told otherwise, newer releases look for flash attention on their hub; older ones do so for a name without prefix.
    return "sdpa" if "auto_switch_to_flash" in CONFIG else "paged|sdpa"


def _run(model: Any, batch: int, context: int, tokens: int, settings: Mapping[str, Any]) -> Took:
    blocks = batch * (-(-(context + tokens) // BLOCK) + 1) + 2
    config = ContinuousBatchingConfig(
        num_blocks=blocks,
        max_batch_tokens=max(min(PREFILL, context), batch),
        max_requests_per_batch=batch,
        max_blocks_per_request=0,
        q_padding_interval_size=PADDING,
        kv_padding_interval_size=blocks * BLOCK,
        **settings,
        **({"auto_switch_to_flash": False} if "auto_switch_to_flash" in CONFIG else {}),
    )
    greedy: Any = GenerationConfig(do_sample=False, max_new_tokens=tokens, eos_token_id=-1, pad_token_id=0)
    prompt = np.random.default_rng(context).integers(0, model.config.vocab_size, context).tolist()
    start = time.perf_counter()
    with (
        _quiet(),
        model.continuous_batching_context_manager(
            generation_config=greedy, continuous_batching_config=config, timeout=10
        ) as manager,
    ):
        manager.add_requests([prompt], max_new_tokens=1)
        _collect(manager, 1)
        manager.add_requests([prompt] * batch, max_new_tokens=tokens, record_timestamps=True)
        done = _collect(manager, batch)
        whole = time.perf_counter() - start
    return Took(steady(done, SETTLE), whole)


def steady(rows: Sequence[Sequence[float]], settle: int) -> float:
    """Seconds a step while all rows decode: from the `settle`th token of the last one on, until the first one ends."""
    begin, end = max(times[settle] for times in rows), min(times[-1] for times in rows)
    tokens = sum(begin < at <= end for times in rows for at in times)
    if not tokens:
        raise StepwellError("the rows never decoded all at once: ask for more tokens with --against-tokens")
    return len(rows) * (end - begin) / tokens


def _collect(manager: Any, count: int) -> list[list[float]]:
    """When each of the rows got its tokens."""
    found: list[list[float]] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < count:
        if time.monotonic() > deadline:
            raise StepwellError(f"no answer within {PATIENCE_S:.0f} s")
        result = manager.get_result(timeout=1)
        if result is None:
            if not manager.is_running():
                raise StepwellError("its generation thread ended")
        elif result.error is not None:
            raise StepwellError(str(result.error))
        elif result.is_finished():
            found.append(list(result.timestamps or ()))
    return found


@contextmanager
def _quiet() -> Iterator[None]:
    library: Any = logging
    before = library.get_verbosity()
    library.set_verbosity_error()
    try:
        yield
    finally:
        library.set_verbosity(before)


def _free() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
