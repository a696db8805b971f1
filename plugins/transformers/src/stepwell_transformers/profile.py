"""The largest steps, run once over pages that hold nothing, for what they work with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from transformers import AutoConfig

from stepwell import ConfigError
from stepwell_kernels import PagePool
from stepwell_transformers.cuda.buckets import TOKENS
from stepwell_transformers.memory import GRAPHS, Device, Share, made_bytes, peak, sampling_bytes, weight_bytes
from stepwell_transformers.model import PagedModel
from stepwell_transformers.prove import ProofRow
from stepwell_transformers.random_weights import RandomModel

PAGE = 16
"""Tokens; what a step works with does not depend on it."""


def share_of(model: PagedModel, memory: float, chunk: int, rows: int, *, graphs: bool) -> Share:
    """How a device's memory is divided, for prompts of up to `chunk` tokens a step and `rows` requests at once."""
    chunk = min(chunk, model.context - 1)
    try:
        prompts = peak(model.device, lambda: _run(model, [chunk]))
        decodes = peak(model.device, lambda: _run(model, [1] * rows))
        captured = peak(model.device, lambda: _run(model, [min(chunk, TOKENS[-1])])) if graphs else 0
    except torch.OutOfMemoryError as error:
        raise ConfigError(
            f"runner.chunk: a step of {chunk} tokens does not fit into {Device.now(model.device).name} beside the "
            "weights: lower it, or use a smaller model"
        ) from error
    step = max(prompts, decodes) + sampling_bytes(rows, model.vocab)
    return Share(Device.now(model.device), memory, step, max(decodes, captured) + GRAPHS if graphs else 0)


def needed(folder: Path, dtype: torch.dtype | None, random: RandomModel | None, ranks: int = 1) -> int:
    """Bytes of the weights that are about to be loaded, or made, by each of some ranks.

    Random ones are drawn whole, and cut then. Of others a rank takes its part at the least; what it has whole shows
    when it is loaded.
    """
    if random is None:
        return weight_bytes(folder, dtype) // ranks
    config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    return made_bytes(random.make(config, dtype, torch.device("meta"), "eager"))


def _run(model: PagedModel, counts: list[int]) -> None:
    """A step with rows of so many tokens. All pages are one and the same: nobody looks at what is computed."""
    from stepwell_transformers.cuda.assemble import proof  # asks for Triton

    pools = [PagePool(shape, 1, model.device) for shape in model.shapes(PAGE)]
    with torch.inference_mode():
        run = proof(model, pools, max(counts) + 1, len(counts), lambda layer: None)
        run(
            [
                ProofRow(0, torch.zeros(count, dtype=torch.int64), [np.zeros(-(-count // PAGE), np.int32)] * len(pools))
                for count in counts
            ]
        )
