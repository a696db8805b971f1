"""From logits to tokens: greedy rows together, the others after penalties and cuts; seeded by position.

Pure: a row's draw depends on its logits, its seed and how many tokens it has generated, so a request that was retracted
and comes back draws what it would have drawn, in whatever batch.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import torch

from stepwell import Sampling, TokenLogprob

CANDIDATES = 1024
"""Most likely tokens that are sorted for top-p before all of them are."""


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
    logprobs = torch.log_softmax(logits[wanted].float(), -1) if wanted else None
    penalised = [i for i, draw in enumerate(draws) if _penalised(draw.sampling)]
    if penalised:
        logits = logits.float()
        rows = torch.stack([penalise(logits[i], draws[i]) for i in penalised])
        logits = logits.index_copy(0, torch.tensor(penalised, device=logits.device), rows)
    tokens = logits.argmax(-1)
    warm = [i for i, draw in enumerate(draws) if draw.sampling.temperature > 0]
    if warm:
        tokens[warm] = _draw(logits[warm].float(), [draws[i] for i in warm])
    chosen: list[int] = tokens.tolist()
    found: list[TokenLogprob | None] = [None] * len(draws)
    if logprobs is not None:
        tops = [draws[i].sampling.logprobs or 0 for i in wanted]
        for i, logprob in zip(wanted, _logprobs(logprobs, tokens[wanted], tops), strict=True):
            found[i] = logprob
    return chosen, found


# --- penalties -------------------------------------------------------------------------------------------------


def _penalised(sampling: Sampling) -> bool:
    return bool(sampling.repetition_penalty != 1 or sampling.presence_penalty or sampling.frequency_penalty)


def penalise(logits: torch.Tensor, draw: Draw) -> torch.Tensor:
    """A row's logits [vocab] after penalties: repetition over all tokens, presence and frequency over the answer."""
    sampling, row = draw.sampling, logits.clone()
    if sampling.repetition_penalty != 1 and len(draw.history):
        seen = torch.from_numpy(np.unique(np.asarray(draw.history, dtype=np.int64))).to(row.device)
        values = row[seen]
        penalty = sampling.repetition_penalty
        row[seen] = torch.where(values > 0, values / penalty, values * penalty)
    answer = np.asarray(draw.history[draw.prompt :], dtype=np.int64)
    if (sampling.presence_penalty or sampling.frequency_penalty) and len(answer):
        tokens, counts = np.unique(answer, return_counts=True)
        times = torch.from_numpy(counts).to(row.device, row.dtype)
        row[torch.from_numpy(tokens).to(row.device)] -= sampling.presence_penalty + sampling.frequency_penalty * times
    return row


# --- draws -----------------------------------------------------------------------------------------------------


def _draw(logits: torch.Tensor, draws: Sequence[Draw]) -> torch.Tensor:
    """A token for each row, none of them greedy. What a row draws does not depend on the others."""
    heat = _column([draw.sampling.temperature for draw in draws], logits)
    probs = torch.softmax((logits - logits.amax(-1, keepdim=True)) / heat, -1)
    numbers = torch.tensor([uniform(d.seed, d.generated) for d in draws], dtype=torch.float64, device=logits.device)
    tokens = torch.empty(len(draws), dtype=torch.int64, device=logits.device)
    whole = [i for i, draw in enumerate(draws) if not _cuts(draw.sampling)]
    if whole:
        tokens[whole] = pick(probs[whole], numbers[whole])
    narrow = [i for i, draw in enumerate(draws) if _cuts(draw.sampling)]
    for size in (min(CANDIDATES, probs.shape[1]), probs.shape[1]):
        if not narrow:
            break
        found, order = probs[narrow].topk(size, dim=-1)
        kept, enough = cut(found, [draws[i].sampling for i in narrow], probs[narrow])
        tokens[narrow] = order.gather(1, pick(kept, numbers[narrow])[:, None])[:, 0]
        narrow = [i for i, good in zip(narrow, enough, strict=True) if not good]
    return tokens


def _cuts(sampling: Sampling) -> bool:
    return bool(sampling.top_k or sampling.top_p < 1 or sampling.min_p)


def _column(values: Sequence[float], like: torch.Tensor) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32, device=like.device)[:, None]


def cut(found: torch.Tensor, settings: Sequence[Sampling], probs: torch.Tensor) -> tuple[torch.Tensor, list[bool]]:
    """Zero what is cut of the most likely probabilities `found` [rows, n], which descend; of all `probs`.

    Top-k, then top-p of what is left, then min-p: the order of transformers. The most likely token always stays.
    Answers, too, for which rows nothing beyond `found` could have been kept.
    """
    size, vocab = found.shape[1], probs.shape[1]
    top_k = _column([min(s.top_k or vocab, vocab) for s in settings], found)
    top_p, min_p = _column([s.top_p for s in settings], found), _column([s.min_p for s in settings], found)
    kept = found.double() * (torch.arange(size, device=found.device)[None, :] < top_k)
    total = torch.where(top_k < vocab, kept.sum(-1, keepdim=True), probs.double().sum(-1, keepdim=True))
    before = kept.cumsum(-1) - kept
    keep = ((before < top_p * total) | (top_p >= 1)) & (found >= min_p * found[:, :1])
    keep[:, 0] = True
    kept = kept * keep
    off = top_k[:, 0] >= vocab
    enough = (off & (kept[:, -1] == 0)) | (top_k[:, 0] <= size)
    return kept, enough.tolist()


def pick(weights: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """For each row the first place at which the cumulative weight passes `number` in [0, 1) of the total."""
    cumulative = weights.double().cumsum(-1)
    total = cumulative[:, -1:]
    least = torch.nextafter(total, torch.zeros_like(total))
    return torch.searchsorted(cumulative, torch.minimum(numbers[:, None] * total, least), right=True)[:, 0]


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that depends on seed and position alone."""
    digest = blake2b(struct.pack("<QQ", seed & (2**64 - 1), position), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53


# --- log probabilities -----------------------------------------------------------------------------------------


def _logprobs(logprobs: torch.Tensor, tokens: torch.Tensor, tops: Sequence[int]) -> list[TokenLogprob]:
    own: list[float] = logprobs.gather(1, tokens[:, None])[:, 0].tolist()
    values, ids = logprobs.topk(min(max(tops), logprobs.shape[1]), dim=-1)
    pairs = [tuple(zip(i, v, strict=True)) for i, v in zip(ids.tolist(), values.tolist(), strict=True)]
    return [TokenLogprob(mine, best[:top]) for mine, best, top in zip(own, pairs, tops, strict=True)]
