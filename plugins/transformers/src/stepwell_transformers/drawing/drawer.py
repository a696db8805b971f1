"""The sampler of a device: requests come and go by slot, and a step's rows are drawn without waiting for anything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch

from stepwell import Sampling
from stepwell_kernels.fused import most_likely
from stepwell_transformers.drawing import eager
from stepwell_transformers.drawing.asked import Asked
from stepwell_transformers.drawing.counts import Counts
from stepwell_transformers.drawing.drawn import Drawn, Odds
from stepwell_transformers.drawing.upload import upload
from stepwell_transformers.sampling import is_penalised

TOKEN_BYTES = 4


def greedy(logits: torch.Tensor) -> torch.Tensor:
    """The most likely token of each row of `logits` [rows, vocab]."""
    return most_likely(logits)


class Drawer:
    """Draws for `slots` requests over `vocab` tokens.

    All calls come from one thread and with the same current stream; what they enqueue takes effect in the order of the
    calls. So a slot may be closed and opened again while the draws before that are still under way.
    """

    def __init__(
        self, device: torch.device, slots: int, vocab: int, how: Literal["auto", "triton", "torch"] = "auto"
    ) -> None:
        self._device = device
        self._asked = Asked(slots, vocab)
        self._counts = Counts(device, vocab)
        self._draw = eager.draw
        if how == "triton" or (how == "auto" and device.type == "cuda" and has_triton()):
            from stepwell_transformers.drawing import search  # only where it runs: it asks for Triton

            self._draw = search.draw

    def prepare(self, dtype: torch.dtype) -> None:
        """Compile what draws need for logits of a type, so that no request waits for it; before any slot is open."""
        self.open(0, Sampling(temperature=1.0, top_p=0.5, presence_penalty=0.5), bytes(TOKEN_BYTES), 0)
        self.draw(torch.zeros((1, self._asked.vocab), dtype=dtype, device=self._device), [0], [1])
        self.close(0)

    def open(self, slot: int, sampling: Sampling, prompt: bytes, generated: int) -> None:
        """A slot gets a request. `prompt`: int32 bytes of all tokens so far, the last `generated` of them its answer's.

        A request that comes back with more of its answer draws what it would have drawn, if it has a seed.
        """
        length = len(prompt) // TOKEN_BYTES - generated
        counted = self._counts.take(prompt, length) if is_penalised(sampling) else -1
        self._asked.open(slot, sampling, length, counted)

    def close(self, slot: int) -> None:
        """A slot's request is gone."""
        self._counts.give(self._asked.close(slot))

    def plain(self, slots: Sequence[int]) -> bool:
        """Whether the most likely token is all that these slots ask for: what `greedy` answers."""
        return bool(self._asked.plain[np.asarray(slots, dtype=np.int64)].all())

    def draw(self, logits: torch.Tensor, slots: Sequence[int], lengths: Sequence[int]) -> Drawn:
        """A token for each row of `logits` [rows, vocab].

        `lengths`: tokens of prompt and answer before the one to draw, a row each (a plan's row has start + count).
        """
        lines, before = np.asarray(slots, dtype=np.int64), np.asarray(lengths, dtype=np.int64)
        if self._asked.plain[lines].all():
            return Drawn(greedy(logits))
        tokens = self._draw(logits, self._asked, self._counts, lines, before)
        wanted = np.flatnonzero(self._asked.tops[lines] >= 0)
        if not len(wanted):
            return Drawn(tokens)
        (rows,) = upload(self._device, wanted)
        odds = torch.log_softmax(logits[rows].float(), -1)
        tops: list[int] = self._asked.tops[lines[wanted]].tolist()
        own = odds.gather(1, tokens[rows][:, None])[:, 0]
        return Drawn(tokens, Odds(wanted.tolist(), tops, own, *odds.topk(min(max(tops), odds.shape[1]), dim=-1)))


def has_triton() -> bool:
    """Whether kernels can be compiled here."""
    try:
        import triton  # noqa: F401
    except ImportError:
        return False
    return True
