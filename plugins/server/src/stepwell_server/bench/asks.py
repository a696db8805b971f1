"""What is asked, independent of how it is put: made-up spans and earlier answers, as token ids, text or a chat.

Equal spans become equal tokens, so requests that share spans share a prefix in the server's cache, and others do not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

import numpy as np

TEXT = """
the of and to in a is that for it as was with be by on not he his but at are this have from or had an they which one you
were her all she there would their we him been has when who will more no if out so said what up its about into than them
can only other new some could time these two may then do first any my now such like our over man me even most made after
also did many before must through back years where much your way well down should because each just those people how too
little state good very make world still own see men work long get here between both life being under never day same
another know while last might us great old year off come since against go came right used take three water stone light
house small found part place rain river wall deep cool
"""
WORDS = tuple(TEXT.split())
"""Words that most tokenizers have as one token."""
KEPT = 4096
"""Spans whose tokens are kept, so that a prefix that many requests share is made once."""


@dataclass(frozen=True, slots=True)
class Span:
    """So many made-up tokens; the key says which."""

    key: str
    count: int


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server said before; tokens as int32 bytes where they are known."""

    tokens: bytes = b""
    text: str = ""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request: what was said so far, the client's part last, and the tokens that shall come."""

    said: tuple[Span | Answer, ...]
    output: int


class Language:
    """Puts asks into ids of a vocabulary, or into words of which `words_per_token` make a token."""

    def __init__(self, vocab: int, words_per_token: float = 1.0) -> None:
        # Special tokens lie at either end of a vocabulary, or are some of the first.
        self._low, self._high = vocab // 8, max(vocab // 8 + 1, vocab - vocab // 8)
        self._words_per_token = words_per_token
        self._ids = lru_cache(KEPT)(self._make_ids)
        self._text = lru_cache(KEPT)(self._make_text)

    def tokens(self, ask: Ask) -> bytes:
        """The prompt as int32 bytes."""
        return b"".join(one.tokens if isinstance(one, Answer) else self._ids(one) for one in ask.said)

    def text(self, ask: Ask) -> str:
        """The prompt as text."""
        return " ".join(one.text if isinstance(one, Answer) else self._text(one) for one in ask.said)

    def messages(self, ask: Ask) -> list[dict[str, str]]:
        """The prompt as a conversation; spans in a row are one message."""
        return [
            {"role": "assistant" if answered else "user", "content": self.text(Ask(tuple(part), ask.output))}
            for answered, part in groupby(ask.said, lambda one: isinstance(one, Answer))
        ]

    def _make_ids(self, span: Span) -> bytes:
        return _dice(span).integers(self._low, self._high, span.count, dtype=np.int32).tobytes()

    def _make_text(self, span: Span) -> str:
        count = max(1, round(span.count * self._words_per_token))
        return " ".join(WORDS[at] for at in _dice(span).integers(0, len(WORDS), count))


def _dice(span: Span) -> np.random.Generator:
    """Draws that depend on the key only: a shorter span of the same key is a prefix of a longer one."""
    return np.random.default_rng(int.from_bytes(hashlib.blake2b(span.key.encode(), digest_size=16).digest()))


def ids_of(tokens: bytes) -> Sequence[int]:
    """Int32 bytes as numbers."""
    ids: list[int] = np.frombuffer(tokens, dtype=np.int32).tolist()
    return ids
