"""Text to tokens and back with a model's own tokenizer and chat template; imports no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from stepwell import Codec, ConfigError, Context
from stepwell.abc.codec import TextStream
from stepwell_transformers.config import TransformersConfig
from stepwell_transformers.locate import locate
from stepwell_transformers.prepare import prepared
from stepwell_transformers.progress import shown
from stepwell_transformers.template import ChatTemplate
from stepwell_transformers.text import pieces_of


class TransformersCodec(Codec):
    """A tokenizer of the tokenizers library."""

    def __init__(self, config: TransformersConfig, context: Context) -> None:
        with shown(context.log) as report:
            folder = locate(config.model, config.revision, context.state_dir, report)
            ready = prepared(folder, context.state_dir, report)
        about = json.loads((ready / "about.json").read_text(encoding="utf-8"))
        self._tokenizer = Tokenizer.from_file(str(ready / "tokenizer.json"))
        self._template = _template(about["chat_template"], about["special_tokens"], config.model)
        decoder = json.loads((ready / "tokenizer.json").read_text(encoding="utf-8"))["decoder"]
        self._pieces = pieces_of(self._tokenizer, decoder, frozenset(about["special_ids"]))
        self.vocab = self._tokenizer.get_vocab_size()
        self.eos = end_tokens(folder) or tuple(id for id in (about["eos"],) if id is not None)

    def encode(self, text: str) -> bytes:
        return self._tokens(text, special=True)

    def chat(self, messages: Sequence[Mapping[str, str]]) -> bytes:
        if self._template is None:
            raise ValueError("the model has no chat template; use completions")
        return self._tokens(self._template.render(messages), special=False)

    def stream(self) -> TextStream:
        return self._pieces.stream()

    def piece(self, token: int) -> bytes:
        return self._pieces.piece(token)

    def _tokens(self, text: str, *, special: bool) -> bytes:
        """`special`: with those that the model expects at its start; a chat template writes them itself."""
        try:
            ids = self._tokenizer.encode(text, add_special_tokens=special).ids
        except (TypeError, UnicodeEncodeError) as error:  # a lone surrogate, which JSON can carry
            raise ValueError("the text is no valid Unicode") from error
        return np.asarray(ids, dtype="<i4").tobytes()


def end_tokens(folder: Path) -> tuple[int, ...]:
    """The tokens that end an answer: of the generation config, else of the config."""
    for name in ("generation_config.json", "config.json"):
        path = folder / name
        found = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id") if path.is_file() else None
        if found is not None:
            return tuple(found) if isinstance(found, list) else (found,)
    return ()


def _template(source: str | None, special: Mapping[str, str], model: str) -> ChatTemplate | None:
    if source is None:
        return None
    try:
        return ChatTemplate(source, special)
    except ValueError as error:
        raise ConfigError(f"runner.model: {model}: {error}") from error
