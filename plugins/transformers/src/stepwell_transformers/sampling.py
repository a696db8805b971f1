"""From logits to tokens: greedy rows together, the others after penalties and cuts; seeded by position.

Pure: a row's draw depends on its logits, its seed and how many tokens it has generated, so a request that was retracted
and comes back draws what it would have drawn, in whatever batch. Tokens are ordered by logit, and equal ones by number,
so that nothing depends on how a device sorts.
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
COLDEST = 1e-30
"""Temperature below which nothing changes: float32 has no room for much less."""
NUMBERS = 8
"""Of as many positions in a row one hash makes the numbers."""


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
    penalised = [i for i, draw in enumerate(draws) if is_penalised(draw.sampling)]
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


def is_penalised(sampling: Sampling) -> bool:
    """Whether the tokens before count."""
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
    probs = heated(logits, _column([max(draw.sampling.temperature, COLDEST) for draw in draws], logits))
    numbers = torch.tensor([uniform(d.seed, d.generated) for d in draws], dtype=torch.float64, device=logits.device)
    tokens = torch.empty(len(draws), dtype=torch.int64, device=logits.device)
    whole = [i for i, draw in enumerate(draws) if not is_cut(draw.sampling)]
    if whole:
        tokens[whole] = pick(probs[whole], numbers[whole])
    narrow, vocab = [i for i, draw in enumerate(draws) if is_cut(draw.sampling)], probs.shape[1]
    for size in (min(CANDIDATES, vocab), vocab):
        if not narrow:
            break
        rows = [draws[i].sampling for i in narrow]
        values, order = _best(logits[narrow], size)
        found = probs[narrow].gather(1, order)
        keep = cut(
            found,
            probs[narrow].double().sum(-1, keepdim=True),
            _column([min(s.top_k or vocab, vocab) for s in rows], probs),
            _column([s.top_p for s in rows], probs),
            _column([s.min_p for s in rows], probs),
            vocab,
        )
        tokens[narrow] = order.gather(1, pick(found * keep, numbers[narrow])[:, None])[:, 0]
        last = values.gather(1, keep.sum(-1, keepdim=True) - 1)
        apart = (last > values[:, -1:])[:, 0].tolist()
        # What was not sorted may be as likely as the least of these, or count for top-p.
        enough = [lies and not size < s.top_k < vocab for lies, s in zip(apart, rows, strict=True)]
        narrow = [i for i, good in zip(narrow, enough, strict=True) if not good]
    return tokens


def _best(logits: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The `size` highest logits of each row and their tokens, in order."""
    if size == logits.shape[1]:
        return logits.sort(dim=-1, descending=True, stable=True)
    tokens = logits.topk(size, -1, sorted=False).indices.sort(-1).values
    values, places = logits.gather(1, tokens).sort(dim=-1, descending=True, stable=True)
    return values, tokens.gather(1, places)


def heated(logits: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    """Probabilities at a temperature [rows, 1], however small."""
    return torch.softmax((logits - logits.amax(-1, keepdim=True)) / temperature, -1)


def is_cut(sampling: Sampling) -> bool:
    """Whether some tokens may not be drawn."""
    return bool(sampling.top_k or sampling.top_p < 1 or sampling.min_p)


def _column(values: Sequence[float], like: torch.Tensor) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32, device=like.device)[:, None]


def cut(
    found: torch.Tensor,
    total: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    vocab: int,
) -> torch.Tensor:
    """Which of the most likely probabilities `found` [rows, n] are kept: as many as come first. `total`: of all.

    Top-k (`vocab` is off), then top-p of what is left, then min-p: the order of transformers. The first always stays.
    """
    within = torch.arange(found.shape[1], device=found.device)[None, :] < top_k
    kept = found.double() * within
    total = torch.where(top_k < vocab, kept.sum(-1, keepdim=True), total)
    before = kept.cumsum(-1) - kept
    keep = within & ((before < top_p * total) | (top_p >= 1)) & (found >= min_p * found[:, :1])
    keep[:, 0] = True
    return keep


def pick(weights: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """For each row the first place at which the cumulative weight passes `number` in [0, 1) of the total.

    The first of all where the weights are no numbers: a model that computes such must not have it become a token that
    there is not, which would take every other request with it.
    """
    cumulative = weights.double().cumsum(-1)
    total = cumulative[:, -1:]
    least = torch.nextafter(total, torch.zeros_like(total))
    places = torch.searchsorted(cumulative, torch.minimum(numbers[:, None] * total, least), right=True)
    return torch.where(total > 0, places, 0)[:, 0]


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that depends on seed and position alone."""
    return uniforms(seed, position // NUMBERS)[position % NUMBERS]


def uniforms(seed: int, block: int) -> tuple[float, ...]:
    """The numbers of positions from block * NUMBERS on, of one hash."""
    digest = blake2b(struct.pack("<QQ", seed & (2**64 - 1), block), digest_size=8 * NUMBERS).digest()
    return tuple((word >> 11) * 2.0**-53 for word in struct.unpack(f"<{NUMBERS}Q", digest))


# --- log probabilities -----------------------------------------------------------------------------------------


def _logprobs(logprobs: torch.Tensor, tokens: torch.Tensor, tops: Sequence[int]) -> list[TokenLogprob]:
    own: list[float] = logprobs.gather(1, tokens[:, None])[:, 0].tolist()
    values, ids = logprobs.topk(min(max(tops), logprobs.shape[1]), dim=-1)
    pairs = [tuple(zip(i, v, strict=True)) for i, v in zip(ids.tolist(), values.tolist(), strict=True)]
    return [TokenLogprob(mine, best[:top]) for mine, best, top in zip(own, pairs, tops, strict=True)]
