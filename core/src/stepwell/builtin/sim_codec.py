"""The sim runner's tokenizer: UTF-8 bytes are tokens 0 to 255, and 256 ends an answer."""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence

import numpy as np

from stepwell.abc.codec import Codec, TextStream
from stepwell.builtin.sim import EOS, SimConfig
from stepwell.offers import Context
from stepwell.types import TOKEN_BYTES

_ROLES = ("system", "user", "assistant")


class SimCodec(Codec):
    """Needs no vocabulary; any text is some prompt."""

    def __init__(self, config: SimConfig, context: Context | None = None) -> None:
        self.vocab = config.vocab
        self.eos = (EOS,)

    def encode(self, text: str) -> bytes:
        raw = np.frombuffer(text.encode(), np.uint8)
        return raw.astype(np.int32).tobytes()

    def chat(self, messages: Sequence[Mapping[str, str]]) -> bytes:
        if not messages:
            raise ValueError("a conversation needs at least one message")
        parts: list[bytes] = []
        for message in messages:
            role = message.get("role", "")
            if role not in _ROLES:
                raise ValueError(f"role {role!r} is none of {', '.join(_ROLES)}")
            parts += [self.encode(f"<{role}>{message.get('content', '')}"), EOS.to_bytes(TOKEN_BYTES, "little")]
        return b"".join(parts) + self.encode("<assistant>")

    def stream(self) -> TextStream:
        return SimText()

    def piece(self, token: int) -> bytes:
        return bytes((token,)) if token < EOS else b""


class SimText:
    """Text of one answer; half a character waits for its other half."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def add(self, tokens: Sequence[int]) -> str:
        return self._decoder.decode(bytes(token for token in tokens if token < EOS))

    def end(self) -> str:
        return self._decoder.decode(b"", final=True)
