"""Traces of requests, as they were published: Mooncake's block ids, or text with sessions."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np

from stepwell.errors import ConfigError
from stepwell.types import TOKEN_BYTES

MOONCAKE_BLOCK = 512
"""Tokens a hash id stands for in Mooncake's files, which do not say it."""

FIRST_OUTPUT_TOKEN = 1 << 30
"""Answers get tokens from here on, so that they never look like a prompt's."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request of a trace."""

    at: float
    """Seconds since the first request."""
    input_length: int
    output_length: int
    ids: np.ndarray[tuple[int], np.dtype[np.int32]]
    """One id a block, the last block may be partial."""
    block: int
    """Tokens a block."""
    answer: tuple[int, ...] | None = None
    """Its tokens, where the trace tells them."""
    routing_key: str | None = None
    tenant: str | None = None
    priority: int = 0

    def tokens(self) -> bytes:
        """The prompt as int32 bytes: every token of a block is its id, so equal blocks are equal bytes."""
        return np.repeat(self.ids, self.block)[: self.input_length].tobytes()

    def answer_tokens(self) -> bytes:
        """The answer as int32 bytes."""
        said = self.answer or (FIRST_OUTPUT_TOKEN,) * self.output_length
        return np.array(said, dtype=np.int32).tobytes()

    def block_tokens(self, count: int) -> int:
        """Tokens in the first `count` blocks."""
        return min(count * self.block, self.input_length)


class _Line(msgspec.Struct, kw_only=True):
    """What any request of a trace may say beside its tokens."""

    timestamp: float
    routing_key: str | None = None
    tenant: str | None = None
    priority: int = 0


class _MooncakeLine(_Line, kw_only=True):
    input_length: int
    output_length: int
    hash_ids: list[int]


class _TextLine(_Line, kw_only=True):
    input: str
    output: str
    session_id: str = ""


Line = TypeVar("Line", _MooncakeLine, _TextLine)


def load(path: Path, *, block: int = MOONCAKE_BLOCK, limit: int | None = None, speed: float = 1.0) -> list[Arrival]:
    """Read a trace, plain or gzipped, in order of arrival; `speed`: arrivals so many times as fast.

    ConfigError names the file, the line and what is wrong.
    """
    lines = list(_lines(path))
    if not lines:
        raise ConfigError(f"{path}: the trace holds no request")
    parse = _mooncake if b'"hash_ids"' in lines[0][1] else _text
    arrivals = [parse(path, number, raw, block) for number, raw in lines[:limit]]
    start = min(arrival.at for arrival in arrivals)
    moved = [replace(arrival, at=(arrival.at - start) / speed) for arrival in arrivals]
    return sorted(moved, key=lambda arrival: arrival.at)


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rb") as file:
            for number, raw in enumerate(file, 1):
                if raw.strip():
                    yield number, raw
    except (OSError, EOFError, zlib.error) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigError(f"{path}: the trace cannot be read ({why})") from error


def _mooncake(path: Path, number: int, raw: bytes, block: int) -> Arrival:
    line = _decode(path, number, raw, _MooncakeLine)
    ids = line.hash_ids
    blocks = -(-line.input_length // block)
    if line.input_length < 1 or len(ids) != blocks:
        raise ConfigError(
            f"{path}, line {number}: {line.input_length} input tokens are {blocks} blocks of {block} tokens, "
            f"but there are {len(ids)} hash_ids; does --block-tokens fit this trace?"
        )
    if min(ids) < 0 or max(ids) >= FIRST_OUTPUT_TOKEN:
        raise ConfigError(f"{path}, line {number}: a hash id is outside 0 to {FIRST_OUTPUT_TOKEN - 1}")
    return Arrival(
        line.timestamp / 1e3, line.input_length, max(1, line.output_length), np.array(ids, dtype=np.int32), block
    )


def _text(path: Path, number: int, raw: bytes, block: int) -> Arrival:
    """Four bytes of UTF-8 are one token: close to what tokenizers reach, and equal prefixes stay equal."""
    line = _decode(path, number, raw, _TextLine)
    data = line.input.encode()
    data += b"\0" * (-len(data) % TOKEN_BYTES)
    ids = np.frombuffer(data or b"\0" * TOKEN_BYTES, dtype=np.int32)
    outputs = max(1, -(-len(line.output.encode()) // TOKEN_BYTES))
    return Arrival(line.timestamp / 1e6, len(ids), outputs, ids, 1)


def _decode(path: Path, number: int, raw: bytes, kind: type[Line]) -> Line:
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path}, line {number}: not a request of a known trace format ({error})") from error
