"""What an engine and its ranks say to each other: messages with a word in front on a stream, any number under way.

A plan is packed once for all ranks, its arrays as bytes. Nothing here is ever unpickled but the recipe, which a worker
only takes from the parent that started it.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from enum import IntEnum
from typing import Literal, TypeVar

import msgspec
import numpy as np

from stepwell.abc.runner import ModelInfo, PageCopy, Row, SlotOpen, StepPlan, StepResult, TableEdit
from stepwell.cache.arena import Region
from stepwell.types import Chunked, Full, GroupSpec, Ids, Need, TokenLogprob, Window

T = TypeVar("T")

MOST_BYTES = 1 << 30
"""No message is larger; what says so is no rank of ours."""
RUNNER = -1
"""Where numbers of storages go by their number: those of the runner."""
_HEAD = struct.Struct("<IB")
_BUFFER = 256 * 1024


class Word(IntEnum):
    """What a message is."""

    MAKE = 0
    """To a rank: its recipe; answered by MADE."""
    OPEN = 1
    PIN = 2
    """With the arena's descriptor."""
    PIN_OWN = 6
    """With what to make one of."""
    PLAN = 3
    CLOSE = 4
    CALL = 5
    """A storage call; answered by REPLY, in any order."""
    MADE = 16
    DONE = 17
    """Of OPEN, both PINs and CLOSE."""
    RESULT = 18
    SAVED = 19
    BEAT = 20
    """With what storages count, where there are any."""
    FAILED = 21
    """The rank ends, for this reason."""
    REPLY = 22


class Nonsense(Exception):
    """A message that no rank of ours sends."""


class GroupText(msgspec.Struct, frozen=True, array_like=True):
    """A GroupSpec that can travel."""

    name: str
    need: Literal["full", "window", "chunked"]
    need_tokens: int
    token_bytes: int
    layers: tuple[int, ...]
    heads: int
    ranks: int

    @classmethod
    def of(cls, group: GroupSpec) -> GroupText:
        """A runner's group as text."""
        match group.need:
            case Window(tokens=tokens):
                need, much = "window", tokens
            case Chunked(tokens=tokens):
                need, much = "chunked", tokens
            case _:
                need, much = "full", 0
        return cls(group.name, need, much, group.token_bytes, tuple(group.layers), group.heads, group.ranks)  # type: ignore[arg-type]

    def group(self) -> GroupSpec:
        """The group again."""
        needs: Mapping[str, Need] = {
            "full": Full(),
            "window": Window(self.need_tokens),
            "chunked": Chunked(self.need_tokens),
        }
        return GroupSpec(self.name, needs[self.need], self.token_bytes, self.layers, self.heads, self.ranks)


class Made(msgspec.Struct, frozen=True, array_like=True):
    """What the brain has to know of a rank's runner."""

    model: ModelInfo
    texts: tuple[GroupText, ...]
    preferred_chunk: int
    depth: int
    max_steps: int
    late_saves: bool
    budget: int | None

    @property
    def groups(self) -> tuple[GroupSpec, ...]:
        """The runner's groups."""
        return tuple(text.group() for text in self.texts)


class Opening(msgspec.Struct, frozen=True, array_like=True):
    """What `Runner.open` is told."""

    page_size: int
    pages: dict[str, int]
    slots: int


class Pinning(msgspec.Struct, frozen=True, array_like=True):
    """The arena as one rank sees it; its descriptor comes with this."""

    nbytes: int
    regions: tuple[Region, ...]


class OwnPinning(msgspec.Struct, frozen=True, array_like=True):
    """What an arena is made of that a rank has for itself; as `cache.elsewhere.Elsewhere`."""

    page_size: int
    pages: tuple[int, ...]
    shards: tuple[int, ...]
    """Of each group."""
    setting: str
    named: bool


class Plan(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A StepPlan on its way."""

    number: int
    rows: tuple[Row, ...]
    opens: tuple[SlotOpen, ...]
    closes: tuple[int, ...]
    tables: list[tuple[int, int, int, bytes]]
    loads: list[tuple[int, int, bytes, bytes]]
    saves: list[tuple[int, int, bytes, bytes]]
    horizon: int


class Result(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A StepResult on its way."""

    number: int
    steps: int
    tokens: tuple[tuple[int, ...], ...]
    copies: dict[int, bytes]
    """A byte a page."""
    error: str | None = None
    logprobs: tuple[tuple[TokenLogprob, ...], ...] | None = None


_encoder = msgspec.msgpack.Encoder()
_plans = msgspec.msgpack.Decoder(Plan)
_results = msgspec.msgpack.Decoder(Result)
_bitmaps = msgspec.msgpack.Decoder(dict[int, bytes])
encode = _encoder.encode


def decoded(body: bytes, kind: type[T]) -> T:
    """A message's body. Raises Nonsense."""
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except (msgspec.MsgspecError, ValueError) as error:
        raise Nonsense(str(error)) from None


def packed(plan: StepPlan) -> bytes:
    """A plan as it travels."""
    tables = [(edit.slot, edit.group, edit.first, edit.pages.tobytes()) for edit in plan.tables]
    loads, saves = _copies(plan.loads), _copies(plan.saves)
    return encode(Plan(plan.number, plan.rows, plan.opens, plan.closes, tables, loads, saves, plan.horizon))


def unpacked(body: bytes) -> StepPlan:
    """The plan again. Raises msgspec.MsgspecError."""
    plan = _plans.decode(body)
    tables = tuple([TableEdit(slot, group, first, _ids(pages)) for slot, group, first, pages in plan.tables])
    loads, saves = _copied(plan.loads), _copied(plan.saves)
    return StepPlan(plan.number, plan.rows, plan.opens, plan.closes, tables, loads, saves, plan.horizon)


def answer(result: StepResult, *, logprobs: bool) -> bytes:
    """A result as it travels; log probabilities only of one rank."""
    return encode(
        Result(
            result.number,
            result.steps,
            tuple(result.tokens),
            bitmaps(result.copies),
            result.error,
            result.logprobs if logprobs else None,
        )
    )


def result(body: bytes) -> Result:
    """The result again. Raises Nonsense."""
    try:
        return _results.decode(body)
    except msgspec.MsgspecError as error:
        raise Nonsense(str(error)) from None


def bitmaps(copies: Mapping[int, Sequence[bool]]) -> dict[int, bytes]:
    """Which pages were copied, a byte each."""
    return {id: bytes(map(bool, pages)) for id, pages in copies.items()}


def saved(body: bytes) -> dict[int, bytes]:
    """Saves that ended. Raises Nonsense."""
    try:
        return _bitmaps.decode(body)
    except msgspec.MsgspecError as error:
        raise Nonsense(str(error)) from None


def _copies(copies: Sequence[PageCopy]) -> list[tuple[int, int, bytes, bytes]]:
    return [(copy.id, copy.group, copy.device.tobytes(), copy.host.tobytes()) for copy in copies]


def _copied(copies: Sequence[tuple[int, int, bytes, bytes]]) -> tuple[PageCopy, ...]:
    return tuple([PageCopy(id, group, _ids(device), _ids(host)) for id, group, device, host in copies])


def _ids(pages: bytes) -> Ids:
    return np.frombuffer(pages, np.int32)


class Stream:
    """One end. Any thread says something; one thread hears."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        self.fds: list[int] = []
        """Descriptors that came, where they are taken."""
        self._saying = threading.Lock()
        self._buffer = bytearray(_BUFFER)
        self._have = 0

    def fileno(self) -> int:
        return self.end.fileno()

    def say(self, word: Word, body: bytes = b"", fd: int = -1) -> None:
        """Say it whole. OSError where nobody is left to hear it."""
        whole = _HEAD.pack(len(body), word) + body
        with self._saying:
            sent = 0
            if fd >= 0:
                sent = socket.send_fds(self.end, [whole], [fd])
            if sent < len(whole):
                self.end.sendall(memoryview(whole)[sent:])

    def hear(self, *, wait: bool = True, fds: bool = False) -> list[tuple[int, bytes]]:
        """All messages that are there whole, maybe none. EOFError where the other end is gone.

        Raises Nonsense for what can be no message. `fds`: descriptors are expected, too.
        """
        flags = 0 if wait else socket.MSG_DONTWAIT
        room = memoryview(self._buffer)[self._have :]
        try:
            if fds:
                data, came, _, _ = socket.recv_fds(self.end, len(room), 1, flags)
                self.fds += came
                got = len(data)
                room[:got] = data
            else:
                got = self.end.recv_into(room, 0, flags)
        except BlockingIOError:
            return []
        finally:
            room.release()
        if not got:
            raise EOFError
        self._have += got
        return self._whole()

    def first(self) -> tuple[int, bytes]:
        """The next message, where the other end then waits for an answer. EOFError where it is gone."""
        while not (heard := self.hear()):
            pass
        return heard[0]

    def _whole(self) -> list[tuple[int, bytes]]:
        at, whole = 0, []
        while self._have - at >= _HEAD.size:
            size, word = _HEAD.unpack_from(self._buffer, at)
            if size > MOST_BYTES:
                raise Nonsense(f"a message of {size} bytes")
            end = at + _HEAD.size + size
            if end > self._have:
                break
            whole.append((word, bytes(memoryview(self._buffer)[at + _HEAD.size : end])))
            at = end
        if at:
            self._buffer[: self._have - at] = self._buffer[at : self._have]
            self._have -= at
        if self._have == len(self._buffer):  # grows with what comes, not with what is announced
            self._buffer.extend(bytes(len(self._buffer)))
        return whole

    def close(self) -> None:
        """Let go of it, and have the other end hear that."""
        with suppress(OSError):
            self.end.shutdown(socket.SHUT_RDWR)
        self.end.close()
