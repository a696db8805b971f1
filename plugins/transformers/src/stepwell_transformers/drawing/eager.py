"""Draws with torch's own operations: where there is no Triton.

All of what is cut is sorted: whether a part of it would do is known on the device alone.
"""

from __future__ import annotations

import numpy as np
import torch

from stepwell_transformers.drawing.asked import (
    COUNTED,
    FREQUENCY,
    MIN_P,
    PRESENCE,
    REPETITION,
    TEMPERATURE,
    TOP_K,
    TOP_P,
    Asked,
    Ints,
)
from stepwell_transformers.drawing.counts import PROMPT, Counts
from stepwell_transformers.drawing.upload import upload
from stepwell_transformers.sampling import cut, heated, pick


def draw(logits: torch.Tensor, asked: Asked, counts: Counts, slots: Ints, lengths: Ints) -> torch.Tensor:
    """A token for each row; those whose tokens are counted have it counted."""
    scales, wholes, narrow = asked.scales[:, slots], asked.wholes[:, slots], asked.cut[slots]
    warm = scales[TEMPERATURE] > 0
    chosen = [np.flatnonzero(rows) for rows in (wholes[COUNTED] >= 0, warm & ~narrow, warm & narrow)]
    numbers, columns, integers, *indexes = upload(
        logits.device, asked.numbers(slots, lengths), scales, wholes.astype(np.int64), *chosen
    )
    columns, (counted, whole, cut_short) = columns[:, :, None], indexes
    lines = integers[COUNTED, counted]
    if len(counted):
        own = _penalised(logits[counted].float(), counts.table[lines], columns[:, counted])
        logits = logits.float().index_copy(0, counted, own)
    tokens = logits.argmax(-1)
    if len(whole):
        probs = heated(logits[whole].float(), columns[TEMPERATURE, whole])
        tokens.index_copy_(0, whole, pick(probs, numbers[whole]))
    if len(cut_short):
        tokens.index_copy_(
            0,
            cut_short,
            _cut_draws(
                logits[cut_short].float(), columns[:, cut_short], integers[TOP_K, cut_short, None], numbers[cut_short]
            ),
        )
    if len(counted):
        flat = lines * logits.shape[1] + tokens[counted]
        counts.table.view(-1).scatter_add_(0, flat, torch.ones_like(flat, dtype=torch.int32))
    return tokens


def _cut_draws(logits: torch.Tensor, columns: torch.Tensor, top_k: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    values, order = logits.sort(dim=-1, descending=True, stable=True)
    probs = heated(values, columns[TEMPERATURE])
    total = probs.double().sum(-1, keepdim=True)
    keep = cut(probs, total, top_k, columns[TOP_P], columns[MIN_P], logits.shape[1])
    return order.gather(1, pick(probs * keep, numbers)[:, None])[:, 0]


def _penalised(logits: torch.Tensor, lines: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """As `sampling.penalise`, of rows: repetition over all tokens, presence and frequency over the answer."""
    repetition, times = columns[REPETITION], lines & (PROMPT - 1)
    repeated = torch.where(logits > 0, logits / repetition, logits * repetition)
    logits = torch.where(lines != 0, repeated, logits)
    owed = columns[PRESENCE] + columns[FREQUENCY] * times.float()
    return torch.where(times > 0, logits - owed, logits)
