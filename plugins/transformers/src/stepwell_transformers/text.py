"""Token text: the bytes that each token of a vocabulary stands for, and an answer's text as it grows.

The text of a stream is exactly the text of all its tokens decoded at once; what later tokens could still change is held
back. Vocabularies come in three kinds: byte-level ones, whose tokens are bytes and nothing else; ones that fall back to
a token a byte; and others, whose own decoder is asked.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer

from stepwell.abc.codec import TextStream

UNKNOWN = "�"
"""What a tokenizer writes for bytes that are no character."""
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


def _letters() -> dict[str, int]:
    """The letters that byte-level vocabularies write bytes as: printable ones as themselves, the others from 256 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + at): byte for at, byte in enumerate(others)}


_LETTERS = _letters()


class ByteLevel:
    """Tokens are written with one letter a byte, or plainly where they were added later."""

    def __init__(self, tokenizer: Tokenizer, special: frozenset[int]) -> None:
        self._tokenizer, self._special = tokenizer, special
        self._known: dict[int, bytes] = {}

    def piece(self, token: int) -> bytes:
        """The bytes of a token; none for one that does not exist."""
        found = self._known.get(token)
        if found is None:
            raw = self._tokenizer.id_to_token(token) or ""
            plain = any(letter not in _LETTERS for letter in raw)
            found = self._known[token] = raw.encode() if plain else bytes(_LETTERS[letter] for letter in raw)
        return found

    def stream(self) -> TextStream:
        """A decoder for one answer."""
        return _BytesText(self)

    def bytes_of(self, tokens: Sequence[int]) -> bytes:
        """The bytes of an answer's part: special tokens have none."""
        return b"".join(self.piece(token) for token in tokens if token not in self._special)


class _BytesText:
    def __init__(self, pieces: ByteLevel) -> None:
        self._pieces = pieces
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def add(self, tokens: Sequence[int]) -> str:
        return self._decoder.decode(self._pieces.bytes_of(tokens))

    def end(self) -> str:
        return self._decoder.decode(b"", final=True)


class Other:
    """The tokenizer's own decoder knows; a stream decodes what is new together with a little before it."""

    def __init__(self, tokenizer: Tokenizer, special: frozenset[int]) -> None:
        self.tokenizer, self.special = tokenizer, special
        self._first = self._context()

    def piece(self, token: int) -> bytes:
        """The bytes of a token as it stands inside a text."""
        raw = self.tokenizer.id_to_token(token)
        if raw is None:
            return b""
        byte = self.byte(token)
        if byte is not None:
            return byte
        if token in self.special:
            return raw.encode()
        before = self.tokenizer.decode([self._first], skip_special_tokens=False)
        return self.tokenizer.decode([self._first, token], skip_special_tokens=False)[len(before) :].encode()

    def byte(self, token: int) -> bytes | None:
        """The byte of a token that stands for one."""
        match = _BYTE.fullmatch(self.tokenizer.id_to_token(token) or "")
        return bytes([int(match[1], 16)]) if match else None

    def stream(self) -> TextStream:
        """A decoder for one answer."""
        return _WindowText(self)

    def _context(self) -> int:
        """An ordinary token, so that another one stands inside a text and not at its start."""
        ids = range(self.tokenizer.get_vocab_size())
        return next((i for i in ids if (self.tokenizer.id_to_token(i) or "").isascii() and self._word(i)), 0)

    def _word(self, token: int) -> bool:
        return token not in self.special and (self.tokenizer.id_to_token(token) or "").isalpha()


class _WindowText:
    def __init__(self, pieces: Other) -> None:
        self._pieces = pieces
        self._tokens: list[int] = []
        """The last tokens whose text has been given, for context, then those whose text has not."""
        self._given = 0

    def add(self, tokens: Sequence[int]) -> str:
        self._tokens += [token for token in tokens if token not in self._pieces.special]
        last = self._tokens[-1] if self._tokens else None
        if last is None or self._pieces.byte(last) is not None:
            return ""  # a run of bytes is decoded as one: its end may spoil its beginning
        text = self._pending()
        if text.endswith(UNKNOWN):
            return ""
        self._tokens, self._given = self._tokens[self._given :], len(self._tokens) - self._given
        return text

    def end(self) -> str:
        text = self._pending()
        self._given = len(self._tokens)
        return text

    def _pending(self) -> str:
        known = self._decode(self._tokens[: self._given])
        return self._decode(self._tokens)[len(known) :]

    def _decode(self, tokens: Sequence[int]) -> str:
        text: str = self._pieces.tokenizer.decode(tokens, skip_special_tokens=False) if tokens else ""
        return text


def pieces_of(tokenizer: Tokenizer, decoder: dict[str, Any] | None, special: frozenset[int]) -> ByteLevel | Other:
    """What the tokens of a vocabulary stand for, by the kind of its `decoder` as tokenizer.json describes it."""
    if (decoder or {}).get("type") == "ByteLevel":
        return ByteLevel(tokenizer, special)
    return Other(tokenizer, special)
