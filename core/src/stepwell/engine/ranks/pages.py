"""Pages of ranks with an arena and a storage each: the brain asks all of them, and a page needs the word of each one.

A rank moves its own parts. What every rank holds whole is written by rank 0 alone and read by all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum

import msgspec
import numpy as np

from stepwell.engine.page_io import PageIO, Unfit, together
from stepwell.engine.seal import Damaged
from stepwell.types import (
    DIGEST_BYTES,
    DONE,
    MISSING,
    TAG_BYTES,
    Done,
    Failed,
    GroupSpec,
    Ids,
    Missing,
    PageKey,
    PageResult,
)

KEY_BYTES = DIGEST_BYTES + TAG_BYTES

Call = Callable[[Mapping[int, bytes]], Mapping[int, bytes | Exception]]
"""Asks ranks, each its own question, all at once; answers what each answered, or why it did not."""


class Verb(IntEnum):
    """What is asked of pages."""

    CONTAINS = 0
    READ = 1
    WRITE = 2


class Ask(msgspec.Struct, frozen=True, array_like=True):
    """A question to one rank."""

    verb: Verb
    group: int
    keys: bytes
    ids: bytes


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """What became of each page, a letter each, and of those that failed, why."""

    pages: bytes
    reasons: list[str]


_asks = msgspec.msgpack.Decoder(Ask)
_answers = msgspec.msgpack.Decoder(Answer)


class RanksPageIO(PageIO):
    """On the brain's side."""

    def __init__(self, groups: Sequence[GroupSpec], world: int, call: Call) -> None:
        self._groups, self._world, self._call = tuple(groups), world, call

    def contains(self, keys: Sequence[PageKey]) -> list[PageResult]:
        results = self._asked(Verb.CONTAINS, 0, keys, np.empty(0, np.int32), self._world)
        if wrong := next((result for result in results if isinstance(result, Failed)), None):
            raise Unfit(wrong.reason)
        return results

    def read(self, group: int, keys: Sequence[PageKey], ids: Ids) -> list[PageResult]:
        return self._asked(Verb.READ, group, keys, ids, self._world)

    def write(self, group: int, keys: Sequence[PageKey], ids: Ids) -> list[PageResult]:
        return self._asked(Verb.WRITE, group, keys, ids, self._world if self._groups[group].ranks > 1 else 1)

    def _asked(self, verb: Verb, group: int, keys: Sequence[PageKey], ids: Ids, ranks: int) -> list[PageResult]:
        body = msgspec.msgpack.encode(Ask(verb, group, b"".join(keys), ids.tobytes()))
        answers = self._call(dict.fromkeys(range(ranks), body))
        said = [_results(rank, answers[rank], len(keys)) for rank in range(ranks)]
        return [together(parts) for parts in zip(*said, strict=True)]


def served(pages: PageIO, body: bytes) -> bytes:
    """On a rank: do what is asked of its own pages. Raises what that raises."""
    ask = _asks.decode(body)
    keys = [ask.keys[at : at + KEY_BYTES] for at in range(0, len(ask.keys), KEY_BYTES)]
    ids = np.frombuffer(ask.ids, np.int32)
    match ask.verb:
        case Verb.CONTAINS:
            results = pages.contains(keys)
        case Verb.READ:
            results = pages.read(ask.group, keys, ids)
        case Verb.WRITE:
            results = pages.write(ask.group, keys, ids)
    reasons = [result.reason for result in results if isinstance(result, Failed)]
    return msgspec.msgpack.encode(Answer(bytes(map(_letter, results)), reasons))


def _letter(result: PageResult) -> int:
    match result:
        case Done():
            return ord("d")
        case Missing():
            return ord("m")
        case Damaged():
            return ord("x")
        case Failed():
            return ord("f")
    raise Unfit("results that are not page results came")


def _results(rank: int, answer: bytes | Exception, count: int) -> Sequence[PageResult]:
    """What one rank says of each page; a rank that says nothing that makes sense has failed all of them."""
    if isinstance(answer, Exception):
        return [Failed(f"rank {rank}: {type(answer).__name__}: {answer}")] * count
    try:
        found = _answers.decode(answer)
        reasons = iter(found.reasons)
        results = [_result(letter, rank, reasons.__next__) for letter in found.pages]
    except (msgspec.MsgspecError, StopIteration, KeyError) as error:
        return [Failed(f"rank {rank} answered nonsense ({type(error).__name__})")] * count
    if len(results) != count:
        return [Failed(f"rank {rank}: {len(results)} results came for {count} pages")] * count
    return results


def _result(letter: int, rank: int, reason: Callable[[], str]) -> PageResult:
    match chr(letter):
        case "d":
            return DONE
        case "m":
            return MISSING
        case "x":
            return Damaged(f"rank {rank}: {reason()}")
        case "f":
            return Failed(f"rank {rank}: {reason()}")
    raise KeyError(letter)
