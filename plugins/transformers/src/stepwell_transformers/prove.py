"""A model is run both ways before it is served: through pages, and by its own library.

A part that keeps state of its own, biases attention, or works its positions out otherwise shows here, whatever it is
called; a model that fails would have answered wrongly, and without a word.
"""

from __future__ import annotations

import numpy as np
import torch

from stepwell import ConfigError
from stepwell_kernels import Batch, PagePool, PageShape, RaggedRow
from stepwell_transformers.model import Foreign, PagedModel, Paging

PAGE = 4
LENGTHS = (11, 6)
"""Tokens of two rows: all but the last in one step, so that pages are left half full, the last in another."""
TOLERANCE = {torch.float32: 1e-3, torch.float16: 5e-2, torch.bfloat16: 1e-1}
"""Of the largest logit: a wrong model is off by as much as logits differ."""


def prove(model: PagedModel, name: str) -> None:
    """ConfigError where a model's answers through pages are not its own."""
    tokens = [_tokens(length, model.vocab, row).to(model.device) for row, length in enumerate(LENGTHS)]
    with torch.inference_mode():
        try:
            got, layers = _through_pages(model, tokens)
        except Foreign as part:
            raise ConfigError(f"runner.model: {name} has attention with {part}, which is not supported yet") from part
        except (TypeError, RuntimeError, AttributeError, IndexError) as error:
            raise ConfigError(
                f"runner.model: {name} does not run on pages ({type(error).__name__}: {str(error).splitlines()[0]})"
            ) from error
        if layers != list(range(model.layers)) * 2:
            raise ConfigError(
                f"runner.model: {name} has layers that do without the attention that pages are read by, "
                f"which is not supported yet ({len(set(layers))} of {model.layers} use it)"
            )
        with model.by_itself() as plain:
            want = torch.stack([plain(input_ids=row[None], use_cache=False).logits[0, -1] for row in tokens])
    off = float((got.float() - want.float()).abs().max() / want.float().abs().max().clamp(min=1e-6))
    if not off <= TOLERANCE.get(model.dtype, 1e-1):
        raise ConfigError(
            f"runner.model: {name} has a part that keeps or adds something that pages do not hold, "
            f"which is not supported yet (logits are off by {off:.2g} of the largest)"
        )


def _tokens(length: int, vocab: int, row: int) -> torch.Tensor:
    return (torch.arange(length) * 7919 + 104729 * (row + 1)) % vocab


def _through_pages(model: PagedModel, tokens: list[torch.Tensor]) -> tuple[torch.Tensor, list[int]]:
    """Logits after each row's last token, and the layers that were asked in turn."""
    shape = PageShape(model.layers, PAGE, model.kv_heads, model.head_dim, model.dtype)
    pool = PagePool(shape, 8, model.device)
    tables = [np.array([6, 0, 3], np.int32), np.array([5, 2, 7], np.int32)]
    layers: list[int] = []

    def run(starts: list[int], ends: list[int]) -> torch.Tensor:
        rows = [RaggedRow(a, b - a, table) for a, b, table in zip(starts, ends, tables, strict=True)]
        flat = torch.cat([row[a:b] for row, a, b in zip(tokens, starts, ends, strict=True)])
        places = torch.cat([torch.arange(a, b) for a, b in zip(starts, ends, strict=True)])
        last = torch.tensor(np.cumsum([row.count for row in rows]) - 1)
        paging = Paging(pool, Batch(rows, PAGE, model.device), layers.append)
        return model.forward(flat, places.to(model.device), paging, last.to(model.device))

    ends = [len(row) for row in tokens]
    run([0, 0], [end - 1 for end in ends])
    return run([end - 1 for end in ends], ends), layers
