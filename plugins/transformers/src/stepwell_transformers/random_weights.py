"""Models of public shapes with random weights, for benches and tests: nothing is downloaded, nor a tokenizer needed.

`random/NAME`, or `random/NAME@SEED`. The weights are drawn on the device itself, as the library draws them before a
training (norms are ones, the rest is normal), so that what a layer computes has sane sizes.
"""

from __future__ import annotations

import codecs
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stepwell import Codec, ConfigError

if TYPE_CHECKING:
    import torch

PREFIX = "random/"
SHAPES = Path(__file__).parent / "shapes"
BYTES = 256
SEED_DIGITS = 18
"""So that torch's generators take every one."""


@dataclass(frozen=True, slots=True)
class RandomModel:
    """A shape, and the seed of its weights."""

    name: str
    seed: int

    @property
    def folder(self) -> Path:
        """Where its config is."""
        return SHAPES / self.name

    @property
    def vocab(self) -> int:
        """How many tokens it knows."""
        return int(json.loads((self.folder / "config.json").read_text(encoding="utf-8"))["vocab_size"])

    def fingerprint(self, device: torch.device) -> str:
        """Of config and seed, and of all that decides which numbers are drawn from it."""
        import torch
        import transformers

        drawn = f"|{self.seed}|{device.type}|torch {torch.__version__}|transformers {transformers.__version__}"
        return hashlib.sha256((self.folder / "config.json").read_bytes() + drawn.encode()).hexdigest()[:32]

    def make(self, config: Any, dtype: torch.dtype | None, device: torch.device, attention: str) -> Any:
        """The model, its weights drawn on `device`; `dtype` None: the config's own."""
        import torch
        from transformers import AutoModelForCausalLM

        places = [device] if device.type == "cuda" else []
        with torch.random.fork_rng(devices=places), torch.device(device):
            torch.manual_seed(self.seed)
            return AutoModelForCausalLM.from_config(
                config, dtype=dtype or config.dtype, attn_implementation=attention
            ).requires_grad_(False)


def wanted(model: str) -> RandomModel | None:
    """The random model that a name means; None: it means another kind. ConfigError: there is no such shape."""
    if not model.startswith(PREFIX):
        return None
    name, at, seed = model.removeprefix(PREFIX).partition("@")
    if name not in (known := names()):
        near = get_close_matches(name, known, n=1)
        raise ConfigError(
            f"runner.model: {model!r} is no random model; have {', '.join(PREFIX + one for one in known)}"
            + (f"; did you mean {PREFIX}{near[0]}?" if near else "")
        )
    if at and not (seed.isdecimal() and len(seed) <= SEED_DIGITS):
        raise ConfigError(
            f"runner.model: {model!r}: the seed after the @ is no whole number of at most {SEED_DIGITS} digits"
        )
    return RandomModel(name, int(seed or 0))


def names() -> list[str]:
    """Of all shapes."""
    return sorted(path.parent.name for path in SHAPES.glob("*/config.json"))


class RandomCodec(Codec):
    """The bytes of a text are its tokens; the tokens beyond them, which a random model says mostly, are their numbers.

    There is no word to learn for weights that mean nothing, but servers and their clients want text.
    """

    eos: tuple[int, ...] = ()

    def __init__(self, vocab: int) -> None:
        self.vocab = vocab

    def encode(self, text: str) -> bytes:
        try:
            return np.frombuffer(text.encode(), np.uint8).astype("<i4").tobytes()
        except UnicodeEncodeError as error:
            raise ValueError("the text is no valid Unicode") from error

    def chat(self, messages: Sequence[Mapping[str, str]]) -> bytes:
        if not messages:
            raise ValueError("a conversation needs at least one message")
        return self.encode("".join(f"<{one['role']}>{one['content']}\n" for one in messages) + "<assistant>")

    def stream(self) -> RandomText:
        return RandomText(self)

    def piece(self, token: int) -> bytes:
        return bytes((token,)) if token < BYTES else f" {token}".encode()


class RandomText:
    """Text of one answer; half a character waits for its other half."""

    def __init__(self, codec: RandomCodec) -> None:
        self._codec = codec
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def add(self, tokens: Sequence[int]) -> str:
        return self._decoder.decode(b"".join(map(self._codec.piece, tokens)))

    def end(self) -> str:
        return self._decoder.decode(b"", final=True)
