"""Text to tokens and back; belongs to the front end."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Protocol


class TextStream(Protocol):
    """Turns the tokens of one answer into text as they come."""

    def add(self, tokens: Sequence[int]) -> str:
        """Text that became certain with these tokens; bytes of an unfinished character are held back."""

    def end(self) -> str:
        """What was held back."""


class Codec(ABC):
    """A model's tokenizer and chat template. Thread-safe. Tokens are int32 bytes, little endian."""

    vocab: int
    eos: tuple[int, ...]

    @abstractmethod
    def encode(self, text: str) -> bytes:
        """Tokens of `text` as a prompt, with the special tokens that the model expects at its start."""

    @abstractmethod
    def chat(self, messages: Sequence[Mapping[str, str]]) -> bytes:
        """Tokens of a conversation that ends where the assistant speaks. ValueError: what the template refuses."""

    @abstractmethod
    def stream(self) -> TextStream:
        """A new decoder for one answer; special tokens give no text."""

    @abstractmethod
    def piece(self, token: int) -> bytes:
        """The bytes that one token stands for, for logprobs."""
