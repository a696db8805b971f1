"""Text to tokens and back with a model's own tokenizer and chat template; needs no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from stepwell import Codec, ConfigError, Context
from stepwell_transformers.config import TransformersConfig
from stepwell_transformers.models import locate

UNKNOWN = "�"
"""What a tokenizer writes for bytes that are no whole character yet."""


class TransformersCodec(Codec):
    """A tokenizer of the transformers library."""

    def __init__(self, config: TransformersConfig, context: Context) -> None:
        from transformers import AutoTokenizer

        folder = locate(config.model, config.revision, context.state_dir, lambda what: context.log.info("%s", what))
        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        except Exception as error:
            raise ConfigError(f"runner.model: the tokenizer in {folder} cannot be read ({error})") from error
        self.eos = end_tokens(folder)
        self.vocab = len(self._tokenizer)
        self._special = frozenset(self._tokenizer.all_special_ids)

    def encode(self, text: str) -> bytes:
        return as_tokens(self._tokenizer.encode(text))

    def chat(self, messages: Sequence[Mapping[str, str]]) -> bytes:
        if not self._tokenizer.chat_template:
            raise ValueError("the model has no chat template; use completions")
        try:
            text = self._tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
        except Exception as error:
            raise ValueError(f"the model's chat template refuses these messages: {error}") from error
        return as_tokens(self._tokenizer.encode(text, add_special_tokens=False))

    def stream(self) -> TokenText:
        return TokenText(self._tokenizer, self._special)

    def piece(self, token: int) -> bytes:
        return self._pieces(token)

    @lru_cache(maxsize=65536)  # noqa: B019 - a codec lives as long as its process
    def _pieces(self, token: int) -> bytes:
        raw: str | None = self._tokenizer.convert_ids_to_tokens(token)
        if raw is None:
            return b""
        if all(char in BYTES for char in raw):
            return bytes(BYTES[char] for char in raw)
        text: str = self._tokenizer.decode([token])
        return text.encode()


class TokenText:
    """Decodes a growing answer: tokens since the last certain text are decoded again with a little before them.

    Tokenizers join tokens (a leading space, a character over several tokens): text is the difference between decoding
    with and without the new tokens, and is held back while it ends in the middle of a character.
    """

    def __init__(self, tokenizer: Any, special: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._special = special
        self._tokens: list[int] = []
        self._before = 0
        """Tokens from here on give context to the next ones."""
        self._certain = 0
        """Tokens before this one have been given out as text."""

    def add(self, tokens: Sequence[int]) -> str:
        self._tokens += [token for token in tokens if token not in self._special]
        text = self._pending()
        if text.endswith(UNKNOWN):
            return ""
        self._before, self._certain = self._certain, len(self._tokens)
        return text

    def end(self) -> str:
        text = self._pending()
        self._before = self._certain = len(self._tokens)
        return text

    def _pending(self) -> str:
        known = self._decode(self._tokens[self._before : self._certain])
        return self._decode(self._tokens[self._before :])[len(known) :]

    def _decode(self, tokens: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(tokens, clean_up_tokenization_spaces=False) if tokens else ""
        return text


def _byte_letters() -> dict[str, int]:
    """The letters that byte-level tokenizers write bytes as: printable ones as themselves, the others from 256 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    letters = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in set(printable)]
    return letters | {chr(256 + at): byte for at, byte in enumerate(others)}


BYTES = _byte_letters()


def as_tokens(ids: Sequence[int]) -> bytes:
    """Token ids as int32 bytes."""
    return np.asarray(ids, dtype="<i4").tobytes()


def end_tokens(folder: Path) -> tuple[int, ...]:
    """The tokens that end an answer: of the generation config, else of the config."""
    for name in ("generation_config.json", "config.json"):
        path = folder / name
        found = json.loads(path.read_text()).get("eos_token_id") if path.is_file() else None
        if found is not None:
            return tuple(found) if isinstance(found, list) else (found,)
    return ()
