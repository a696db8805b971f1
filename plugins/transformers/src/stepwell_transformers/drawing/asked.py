"""What each slot's request asked of the sampler, as columns, so that a step's share is one look-up."""

from __future__ import annotations

import secrets

import numpy as np
import numpy.typing as npt

from stepwell import Sampling
from stepwell_transformers.sampling import COLDEST, NUMBERS, is_cut, is_penalised, uniforms

TEMPERATURE, TOP_P, MIN_P, REPETITION, PRESENCE, FREQUENCY = range(6)
TOP_K, COUNTED = range(2)

Ints = npt.NDArray[np.int64]


class Asked:
    """One line a slot."""

    def __init__(self, slots: int, vocab: int) -> None:
        self.vocab = vocab
        self.scales = np.zeros((6, slots), dtype=np.float32)
        """Settings that are no whole numbers; a temperature of 0 is greedy."""
        self.wholes = np.full((2, slots), -1, dtype=np.int32)
        """Top-k, more than `vocab` where it is off, and which row of counts the slot has; -1: none."""
        self.tops = np.full(slots, -1, dtype=np.int64)
        """How many of the most likely tokens' log probabilities; -1: none at all."""
        self.cut = np.zeros(slots, dtype=np.bool_)
        self.plain = np.ones(slots, dtype=np.bool_)
        """Whether the most likely token is all that is asked for."""
        self._prompt = np.zeros(slots, dtype=np.int64)
        self._seeds = [0] * slots
        self._numbers = np.zeros((slots, NUMBERS), dtype=np.float64)
        self._block = np.full(slots, -1, dtype=np.int64)
        """Of which positions `_numbers` are."""

    def open(self, slot: int, sampling: Sampling, prompt: int, counted: int) -> None:
        """A slot gets a request whose prompt has so many tokens, and its row of counts."""
        heat = max(sampling.temperature, COLDEST) if sampling.temperature > 0 else 0.0
        self.scales[:, slot] = (
            *(heat, sampling.top_p, sampling.min_p),
            *(sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty),
        )
        self.wholes[TOP_K, slot] = min(sampling.top_k, self.vocab) or self.vocab + 1
        self.wholes[COUNTED, slot] = counted
        self.tops[slot] = -1 if sampling.logprobs is None else min(sampling.logprobs, self.vocab)
        self.cut[slot] = heat > 0 and is_cut(sampling)
        self.plain[slot] = not heat and sampling.logprobs is None and not is_penalised(sampling)
        self._prompt[slot] = prompt
        self._seeds[slot] = secrets.randbits(63) if sampling.seed is None else sampling.seed
        self._block[slot] = -1

    def sheet(self, slots: Ints, lengths: Ints) -> npt.NDArray[np.float64]:
        """All that a step's draws ask for, as [numbers, scales, wholes] by row: doubles hold each of them exactly."""
        sheet = np.empty((1 + len(self.scales) + len(self.wholes), len(slots)), dtype=np.float64)
        sheet[0] = self.numbers(slots, lengths)
        sheet[1 : 1 + len(self.scales)] = self.scales[:, slots]
        sheet[1 + len(self.scales) :] = self.wholes[:, slots]
        return sheet

    def close(self, slot: int) -> int:
        """A slot's request is gone; which row of counts it had, -1: none."""
        counted = int(self.wholes[COUNTED, slot])
        self.wholes[COUNTED, slot] = -1
        return counted

    def numbers(self, slots: Ints, lengths: Ints) -> npt.NDArray[np.float64]:
        """The number that each slot's next token is drawn with, `lengths` tokens being there before it."""
        generated = lengths - self._prompt[slots]
        block = generated // NUMBERS
        for at in np.flatnonzero(self._block[slots] != block):
            slot = int(slots[at])
            self._numbers[slot] = uniforms(self._seeds[slot], int(block[at]))
            self._block[slot] = block[at]
        found: npt.NDArray[np.float64] = self._numbers[slots, generated % NUMBERS]
        return found
