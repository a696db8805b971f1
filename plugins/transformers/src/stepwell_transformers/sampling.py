"""From logits to tokens: greedy rows together, the others after penalties and cuts; seeded by position.

Pure: a row's draw depends on its seed and on how many tokens it has generated, so a request that was retracted and
comes back draws what it would have drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from stepwell import Sampling, TokenLogprob


@dataclass(frozen=True, slots=True)
class Draw:
    """One row to sample."""

    sampling: Sampling
    seed: int
    """Of the request; its own, or one made up for it."""
    generated: int
    """Tokens generated before this one."""
    history: Sequence[int]
    """Prompt and answer so far; read only where a penalty asks for it."""
    prompt: int
    """How many of `history` are the prompt's."""


def sample(logits: torch.Tensor, draws: Sequence[Draw]) -> tuple[list[int], list[TokenLogprob | None]]:
    """A token for each row of `logits` [rows, vocab], and its log probability where the row asks for one.

    Log probabilities are the model's own: before temperature, penalties and cuts.
    """
    wanted = [i for i, draw in enumerate(draws) if draw.sampling.logprobs is not None]
    raw = logits[wanted].float() if wanted else logits
    penalised = [i for i, draw in enumerate(draws) if _penalised(draw.sampling)]
    if penalised:
        logits = logits.float().clone()
        for i in penalised:
            _penalise(logits[i], draws[i])
    tokens = logits.argmax(-1)
    warm = [i for i, draw in enumerate(draws) if draw.sampling.temperature > 0]
    if warm:
        tokens[warm] = _draw(logits[warm].float(), [draws[i] for i in warm])
    chosen: list[int] = tokens.tolist()
    found: list[TokenLogprob | None] = [None] * len(draws)
    if wanted:
        logprobs = torch.log_softmax(raw, -1)
        for row, i in enumerate(wanted):
            found[i] = _logprob(logprobs[row], chosen[i], draws[i].sampling.logprobs or 0)
    return chosen, found


def _penalised(sampling: Sampling) -> bool:
    return bool(sampling.repetition_penalty != 1 or sampling.presence_penalty or sampling.frequency_penalty)


def _penalise(row: torch.Tensor, draw: Draw) -> None:
    """Repetition counts over prompt and answer, presence and frequency over the answer."""
    sampling = draw.sampling
    if sampling.repetition_penalty != 1 and len(draw.history):
        seen = torch.from_numpy(np.unique(np.asarray(draw.history, dtype=np.int64))).to(row.device)
        values = row[seen]
        penalty = sampling.repetition_penalty
        row[seen] = torch.where(values > 0, values / penalty, values * penalty)
    answer = np.asarray(draw.history[draw.prompt :], dtype=np.int64)
    if (sampling.presence_penalty or sampling.frequency_penalty) and len(answer):
        tokens, counts = np.unique(answer, return_counts=True)
        index = torch.from_numpy(tokens).to(row.device)
        times = torch.from_numpy(counts).to(row.device, row.dtype)
        row[index] -= sampling.presence_penalty + sampling.frequency_penalty * times


def _draw(logits: torch.Tensor, draws: Sequence[Draw]) -> torch.Tensor:
    """Cut each row's tail, and draw from the rest: the token at which the cumulative probability passes a number."""
    device = logits.device

    def column(values: Sequence[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float32, device=device)[:, None]

    settings = [draw.sampling for draw in draws]
    probs, order = torch.softmax(logits / column([s.temperature for s in settings]), -1).sort(-1, descending=True)
    ranks = torch.arange(probs.shape[1], device=device)[None, :]
    keep = ranks < column([s.top_k or probs.shape[1] for s in settings])
    keep &= probs >= column([s.min_p for s in settings]) * probs[:, :1]
    kept = probs * keep
    kept = kept / kept.sum(-1, keepdim=True)
    before = kept.cumsum(-1) - kept
    keep &= before < column([s.top_p for s in settings])
    keep[:, 0] = True
    kept = kept * keep
    cumulative = kept.cumsum(-1)
    numbers = column([uniform(draw.seed, draw.generated) for draw in draws]) * cumulative[:, -1:]
    place = (cumulative <= numbers).sum(-1, keepdim=True)
    last = keep.sum(-1, keepdim=True) - 1
    return order.gather(1, torch.minimum(place, last))[:, 0]


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that depends on seed and position alone."""
    sequence = np.random.SeedSequence([seed & (2**64 - 1), position])
    return float(np.random.Generator(np.random.Philox(sequence)).random())


def _logprob(row: torch.Tensor, token: int, top: int) -> TokenLogprob:
    values, ids = row.topk(min(top, row.shape[0])) if top else (row[:0], row[:0])
    best = tuple(zip((int(i) for i in ids.tolist()), values.tolist(), strict=True))
    return TokenLogprob(float(row[token]), best)
