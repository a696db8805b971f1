"""Traces of requests, as they were published: Mooncake's block ids, or text with sessions."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
import numpy as np
from msgspec import Meta

from stepwell.errors import ConfigError
from stepwell.replay.texts import Texts, Tokenised, packed
from stepwell.types import Ids

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
    ids: Ids
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


_Name = Annotated[str, Meta(min_length=1)]


class _Line(msgspec.Struct, kw_only=True):
    """What any request of a trace may say beside its tokens."""

    timestamp: Annotated[float, Meta(ge=0)]
    routing_key: _Name | None = None
    tenant: _Name | None = None
    priority: Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)] = 0


class _MooncakeLine(_Line, kw_only=True):
    input_length: int
    output_length: int
    hash_ids: list[int]


class _TextLine(_Line, kw_only=True):
    input: str
    output: str
    session_id: str = ""


Line = TypeVar("Line", _MooncakeLine, _TextLine)


Progress = Callable[[int, int], None]


def load(
    path: Path,
    *,
    block: int = MOONCAKE_BLOCK,
    limit: int | None = None,
    speed: float = 1.0,
    encode: Callable[[str], bytes] | None = None,
    progress: Progress | None = None,
) -> list[Arrival]:
    """Read a trace, plain or gzipped, in order of arrival; `speed`: arrivals so many times as fast.

    `encode` makes the tokens of a text trace, which takes a while: `progress(done, of)` hears how far it is.
    ConfigError names the file, the line and what is wrong.
    """
    lines = list(_lines(path))[:limit]
    if not lines:
        raise ConfigError(f"{path}: the trace holds no request")
    parse = partial(_mooncake, block=block)
    if b'"hash_ids"' not in lines[0][1]:
        parse = partial(_text, texts=Tokenised(encode) if encode else packed)
    elif encode:
        raise ConfigError(f"{path}: a tokenizer is for traces of text, and this one has block ids; leave it out")
    arrivals = []
    for arrival in _each(lambda line: parse(path, *line), lines, apart=encode is not None):
        arrivals.append(arrival)
        if progress:
            progress(len(arrivals), len(lines))
    start = min(arrival.at for arrival in arrivals)
    moved = [replace(arrival, at=(arrival.at - start) / speed) for arrival in arrivals]
    return sorted(moved, key=lambda arrival: arrival.at)


def _each(
    parse: Callable[[tuple[int, bytes]], Arrival], lines: Sequence[tuple[int, bytes]], *, apart: bool
) -> Iterator[Arrival]:
    """Every line's request, in the order of the lines. `apart`: on threads, as tokenizers lock nobody out."""
    if not apart:
        yield from map(parse, lines)
        return
    pool = ThreadPoolExecutor()
    try:
        yield from pool.map(parse, lines)
    finally:
        pool.shutdown(cancel_futures=True)


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
    output = max(1, line.output_length)
    return _arrival(line, line.timestamp / 1e3, line.input_length, output, np.array(ids, dtype=np.int32), block)


def _text(path: Path, number: int, raw: bytes, texts: Texts) -> Arrival:
    line = _decode(path, number, raw, _TextLine)
    try:
        ids, said = texts(line.input, line.output)
    except ValueError as error:
        raise ConfigError(f"{path}, line {number}: {error}") from error
    answer = tuple(said.tolist()) or None
    return _arrival(line, line.timestamp / 1e6, len(ids), max(1, len(said)), ids, 1, answer)


def _arrival(
    line: _Line, at: float, length: int, output: int, ids: Ids, block: int, answer: tuple[int, ...] | None = None
) -> Arrival:
    return Arrival(at, length, output, ids, block, answer, line.routing_key, line.tenant, line.priority)


def _decode(path: Path, number: int, raw: bytes, kind: type[Line]) -> Line:
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path}, line {number}: not a request of a known trace format ({error})") from error
