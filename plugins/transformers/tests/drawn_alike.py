"""Draws of a Drawer beside those of the reference, for settings of all kinds; also a program: `drawn_alike.py`.

As a program it runs the Triton kernel in Triton's interpreter, which must be chosen before Triton is imported.
"""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import torch

from stepwell import Sampling
from stepwell_transformers.drawing import Drawer, Drawn
from stepwell_transformers.sampling import Draw, sample

PROMPT = 7


def any_sampling(luck: random.Random, vocab: int) -> Sampling:
    """Settings that cut, penalise and tell in all combinations; half of each are off."""
    return Sampling(
        temperature=luck.choice([0.0, 0.3, 1.0, 1.7, 30.0, 1e-40]),
        top_k=luck.choice([0, 0, 1, 5, vocab // 3, vocab, 10 * vocab]),
        top_p=luck.choice([1.0, 1.0, 0.0, 0.1, 0.6, 0.95, 0.999]),
        min_p=luck.choice([0.0, 0.0, 0.05, 0.5, 1.0]),
        repetition_penalty=luck.choice([1.0, 1.0, 1.3, 0.8]),
        presence_penalty=luck.choice([0.0, 0.0, 0.5]),
        frequency_penalty=luck.choice([0.0, 0.0, 0.3]),
        logprobs=luck.choice([None, None, 0, 3]),
        seed=luck.randrange(2**40),
    )


class Pair:
    """Requests in a Drawer, and what the reference says of them."""

    def __init__(self, device: torch.device, how: str, rows: int, vocab: int, seed: int) -> None:
        self.luck, self.device, self.vocab = random.Random(seed), device, vocab
        self.drawer = Drawer(device, rows + 1, vocab, how)
        self.settings = [any_sampling(self.luck, vocab) for _ in range(rows)]
        self.histories = [[self.luck.randrange(vocab) for _ in range(PROMPT + row)] for row in range(rows)]
        self.slots = list(range(rows))
        self.luck.shuffle(self.slots)
        for row in range(rows):
            self.open(row)

    def open(self, row: int) -> None:
        """A request gets its slot, with all that it has generated so far."""
        history = np.array(self.histories[row], np.int32).tobytes()
        self.drawer.open(self.slots[row], self.settings[row], history, len(self.histories[row]) - PROMPT)

    def logits(self, rows: list[int]) -> torch.Tensor:
        """Random ones, peaked or flat; with many ties half of the time."""
        made = torch.Generator().manual_seed(self.luck.randrange(2**32))
        logits = torch.randn(len(rows), self.vocab, generator=made) * self.luck.choice([0.2, 1, 6])
        return (logits.bfloat16() if self.luck.random() < 0.5 else logits).to(self.device)

    def steps(self, count: int) -> list[tuple[list[int], torch.Tensor, Drawn]]:
        """Draw for so many steps and look at nothing: the host does not know any of the tokens."""
        done = []
        lengths = [len(history) for history in self.histories]
        for _ in range(count):
            rows = self.luck.sample(range(len(self.slots)), self.luck.randrange(1, len(self.slots) + 1))
            logits = self.logits(rows)
            drawn = self.drawer.draw(logits, [self.slots[row] for row in rows], [lengths[row] for row in rows])
            for row in rows:
                lengths[row] += 1
            done.append((rows, logits, drawn))
        return done

    def compare(self, done: list[tuple[list[int], torch.Tensor, Drawn]]) -> int:
        """Every token and log probability is the reference's; answers how many."""
        for rows, logits, drawn in done:
            draws = [self._draw(row) for row in rows]
            wanted, told = sample(logits.cpu(), draws)
            found = drawn.read()
            for at, row in enumerate(rows):
                assert found[at] == wanted[at] or self._near(logits[at].cpu(), draws[at], found[at]), self.settings[row]
                self.histories[row].append(found[at])
            for mine, theirs in zip(drawn.logprobs(), told, strict=True):
                assert (mine is None) == (theirs is None)
                if mine is not None and theirs is not None:
                    assert len(mine.top) == len(theirs.top)
                    assert np.allclose([value for _, value in mine.top], [value for _, value in theirs.top], atol=1e-4)
        return sum(len(rows) for rows, _, _ in done)

    def _draw(self, row: int) -> Draw:
        setting, history = self.settings[row], self.histories[row]
        return Draw(setting, setting.seed or 0, len(history) - PROMPT, list(history), PROMPT)

    def _near(self, logits: torch.Tensor, draw: Draw, token: int) -> bool:
        """Whether rounding decides: slightly other settings draw this token."""
        setting = draw.sampling
        if setting.temperature == 0:
            return False
        others = [
            replace(setting, temperature=setting.temperature * heat, top_p=top_p, min_p=min_p)
            for heat in (1 - 1e-5, 1, 1 + 1e-5)
            for top_p in {setting.top_p * (1 - 1e-5), setting.top_p, min(1.0, setting.top_p * (1 + 1e-5))}
            for min_p in {setting.min_p * (1 - 1e-5), setting.min_p, min(1.0, setting.min_p * (1 + 1e-5))}
        ]
        found, _ = sample(logits.expand(len(others), -1), [replace(draw, sampling=other) for other in others])
        return token in found


def main() -> None:
    """Compare the kernel, interpreted, with blocks so small that every loop goes round."""
    from stepwell_transformers.drawing import search

    search.BLOCK, search.NARROW, search.MANY = 64, 64, 8
    compared = 0
    for seed in range(12):
        pair = Pair(torch.device("cpu"), "triton", 3, 150, seed)
        compared += pair.compare(pair.steps(1))
    print(f"{compared} draws equal")


if __name__ == "__main__":
    main()
