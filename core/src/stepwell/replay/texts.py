"""Tokens of a text trace: four bytes of UTF-8 each, or what a model's tokenizer makes of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Protocol

import numpy as np
import numpy.typing as npt

from stepwell.types import TOKEN_BYTES

REMEMBERED = 1024
"""Texts whose tokens are remembered, so that one sent again is not read again."""

Tokens = npt.NDArray[np.int32]


class Texts(Protocol):
    """Reads a request's texts."""

    def __call__(self, prompt: str, answer: str) -> tuple[Tokens, Tokens]:
        """Tokens of both. The prompt has one at least. ValueError: what is no text."""


def packed(prompt: str, answer: str) -> tuple[Tokens, Tokens]:
    """Four bytes are one token: close to what tokenizers reach, and equal prefixes stay equal.

    The token in which the answer begins is the prompt's, so that a prompt that goes on behind both has the same tokens.
    """
    said = prompt.encode()
    data = said + answer.encode() if said else b"\0" * TOKEN_BYTES + answer.encode()
    data += b"\0" * (-len(data) % TOKEN_BYTES)
    tokens = np.frombuffer(data, dtype=np.int32)
    length = max(1, -(-len(said) // TOKEN_BYTES))
    return tokens[:length], tokens[length:]


class Tokenised:
    """By `encode`, which puts the special tokens of a prompt's start before every text."""

    def __init__(self, encode: Callable[[str], bytes]) -> None:
        self._encode = lru_cache(REMEMBERED)(encode)
        self._special = len(encode("")) // TOKEN_BYTES

    def __call__(self, prompt: str, answer: str) -> tuple[Tokens, Tokens]:
        tokens = self._read(prompt)
        if not len(tokens):
            tokens = np.zeros(1, dtype=np.int32)
        return tokens, self._read(answer)[self._special :]

    def _read(self, text: str) -> Tokens:
        return np.frombuffer(self._encode(text), dtype=np.int32)
