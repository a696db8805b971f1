"""The store of `nixl-ucx`: pages in the memory of a peer, written and read by NIXL without the peer's doing anything.

For a batch the peer is asked once where it goes (or lies), and told once what has been written, or that reading is
over. A page is found when its write has been told, so half a page never is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from stepwell import (
    DONE,
    MISSING,
    ArenaView,
    Context,
    Failed,
    PageKey,
    PageResult,
    PageViews,
    PluginError,
    Storage,
    StoredPage,
)
from stepwell_nixl.client import Agent, make_ucx_agent
from stepwell_nixl.config import UcxConfig, devices_for
from stepwell_nixl.lanes import Lane, Lanes
from stepwell_nixl.transfer import Op, rows
from stepwell_nixl.wire import (
    FULL,
    HELD,
    VERSION,
    Allocate,
    Delete,
    Done,
    Find,
    Held,
    Hello,
    Lent,
    LetGo,
    Line,
    List,
    Listed,
    Message,
    Pin,
    Publish,
    Request,
    Welcome,
)

KEY = 40
UNMOVED = Failed("NIXL did not move the page; the reason is on standard error")
NO_ROOM = Failed("the peer has no room: all its slots are in use, or the page is larger than they can be")
M = TypeVar("M", bound=Message)
Addresses = npt.NDArray[np.int64]


def connect(config: UcxConfig) -> tuple[Line, Welcome]:
    """A connection to the peer. OSError where it cannot be had."""
    line = Line(*config.address, config.timeout_s)
    try:
        return line, line.ask(Hello(VERSION, str(config.token or "")), Welcome)
    except OSError:
        line.close()
        raise


class PeerLane(Lane):
    """An agent and a connection of its own. Where the connection is lost it is made anew with the next call."""

    def __init__(self, agent: Agent, arena: ArenaView, config: UcxConfig) -> None:
        super().__init__(agent, arena, "DRAM")
        self._config = config
        self._line: Line | None = None
        self._peer = ""

    def ask(self, request: Request, expected: type[M]) -> M:
        """The peer's answer. OSError where there is none."""
        fresh = self._line is None
        try:
            return self._connected().ask(request, expected)
        except OSError:
            self.hang_up()
            if fresh:
                raise
        try:  # the peer may have been started anew since the last call
            return self._connected().ask(request, expected)
        except OSError:
            self.hang_up()
            raise

    def finish(self, request: Publish) -> None:
        """End a lease on the connection that it was lent on. OSError where that is lost."""
        if self._line is None:
            raise OSError("the connection was lost")
        try:
            self._line.ask(request, Done)
        except OSError:
            self.hang_up()
            raise

    def last(self, request: Request) -> None:
        """Tell what needs no answer. A connection that is lost says the same."""
        try:
            if self._line is not None:
                self._line.tell(request)
        except OSError:
            self.hang_up()

    def move(self, op: Op, near: Addresses, far: Addresses, size: int) -> npt.NDArray[np.bool_]:
        """Move pages; which were moved."""
        return self.mover.move(op, rows(near, size), rows(far, size), self._config.transfers, self._peer)

    def hang_up(self) -> None:
        """End the connection, and with it all leases and every transfer."""
        if self._line is not None:
            self._line.close()
            self._line = None
            with suppress(*self.errors):
                self.agent.remove_remote_agent(self._peer)

    def _connected(self) -> Line:
        if self._line is None:
            line, welcome = connect(self._config)
            try:
                peer = self.agent.add_remote_agent(welcome.metadata)
            except self.errors as error:
                line.close()
                raise OSError(f"NIXL does not reach the peer: {error}") from None
            self._line, self._peer = line, name_of_peer(peer)
        return self._line


class UcxStorage(Storage):
    """Pages in a peer."""

    def __init__(self, config: UcxConfig, context: Context) -> None:
        self._config = config
        self._log = context.log
        try:
            line, _ = connect(config)
        except OSError as error:
            raise PluginError(
                f"storage.peer = {config.peer!r} does not answer ({error.strerror or error}); start it there with "
                f"`stepwell nixl peer`, or name another"
            ) from None
        line.close()
        self._lanes: Lanes[PeerLane] | None = None

    def attach(self, arena: ArenaView) -> None:
        config = self._config
        devices = devices_for(config.address[0], config.devices)
        lanes = Lanes(lambda: PeerLane(make_ucx_agent(devices), arena, config))
        with lanes.one():
            self._lanes = lanes

    def contains(self, keys: Sequence[PageKey]) -> Sequence[bool]:
        with self._attached().one() as lane:
            try:
                held = lane.ask(Find(joined(keys)), Held)
            except OSError as error:
                raise OSError(f"{self._config.peer}: {error}") from None
            return [bool(one) for one in held.which]

    def read(self, keys: Sequence[PageKey], into: PageViews) -> Sequence[PageResult]:
        if not keys:
            return []
        size = int(into.sizes[0])
        with self._attached().one() as lane:
            try:
                lent = lane.ask(Pin(joined(keys), size), Lent)
            except OSError as error:
                return self._all_failed(keys, error)
            far = np.frombuffer(lent.addresses, dtype=np.int64)
            there = np.flatnonzero(far != HELD)
            moved = lane.move("READ", into.addresses[there, 0], far[there], size)
            lane.last(LetGo(lent.lease))
            if not moved.all():
                lane.hang_up()
        results: list[PageResult] = [MISSING] * len(keys)
        _put(results, there[moved], DONE)
        _put(results, there[~moved], UNMOVED)
        return results

    def write(self, keys: Sequence[PageKey], pages: PageViews) -> Sequence[PageResult]:
        if not keys:
            return []
        size = int(pages.sizes[0])
        once = list(dict.fromkeys(keys))
        first = np.arange(len(keys)) if len(once) == len(keys) else _firsts(keys)
        with self._attached().one() as lane:
            try:
                lent = lane.ask(Allocate(joined(once), size), Lent)
            except OSError as error:
                return self._all_failed(keys, error)
            far = np.frombuffer(lent.addresses, dtype=np.int64)
            mine = np.flatnonzero((far != HELD) & (far != FULL))
            moved = lane.move("WRITE", pages.addresses[first[mine], 0], far[mine], size)
            results: list[PageResult] = [DONE] * len(once)
            _put(results, np.flatnonzero(far == FULL), NO_ROOM)
            _put(results, mine[~moved], UNMOVED)
            good = np.zeros(len(once), dtype=np.uint8)
            good[mine[moved]] = 1
            self._publish(lane, Publish(lent.lease, good.tobytes()), results, mine)
            if not moved.all():
                lane.hang_up()
        if len(once) == len(keys):
            return results
        by_key = dict(zip(once, results, strict=True))
        return [by_key[key] for key in keys]

    def delete(self, keys: Sequence[PageKey]) -> None:
        with self._attached().one() as lane:
            lane.ask(Delete(joined(keys)), Done)

    def scan(self) -> Iterator[Sequence[StoredPage]]:
        with self._attached().one() as lane:
            start = 0
            while True:
                part = lane.ask(List(start), Listed)
                sizes = np.frombuffer(part.sizes, dtype=np.int64).tolist()
                if not sizes:
                    return
                yield [StoredPage(part.keys[at * KEY : (at + 1) * KEY], nbytes) for at, nbytes in enumerate(sizes)]
                start += len(sizes)

    def close(self) -> None:
        if self._lanes is not None:
            for lane in self._lanes.close():
                lane.hang_up()
            self._lanes = None

    def _publish(self, lane: PeerLane, told: Publish, results: list[PageResult], mine: npt.NDArray[np.intp]) -> None:
        """Say what was written. Not on another connection: the lease has ended with the one that it was lent on."""
        if not len(mine):
            return lane.last(LetGo(told.lease))
        try:
            lane.finish(told)
        except OSError as error:
            _put(results, mine, Failed(f"{self._config.peer}: {error}"))

    def _all_failed(self, keys: Sequence[PageKey], error: OSError) -> list[PageResult]:
        return [Failed(f"{self._config.peer}: {error.strerror or error}")] * len(keys)

    def _attached(self) -> Lanes[PeerLane]:
        if self._lanes is None:
            raise RuntimeError("the storage was not attached, or is closed")
        return self._lanes


def joined(keys: Sequence[PageKey]) -> bytes:
    """Keys as they travel."""
    if set(map(len, keys)) - {KEY}:
        raise ValueError(f"a key must have {KEY} bytes")
    return b"".join(keys)


def name_of_peer(told: str | bytes) -> str:
    """The peer's agent, as NIXL wants it named; it says it in bytes."""
    return told.decode() if isinstance(told, bytes) else told


def _put(results: list[PageResult], which: npt.NDArray[np.intp], result: PageResult) -> None:
    for at in which.tolist():
        results[at] = result


def _firsts(keys: Sequence[PageKey]) -> npt.NDArray[np.intp]:
    first: dict[PageKey, int] = {}
    for at, key in enumerate(keys):
        first.setdefault(key, at)
    return np.fromiter(first.values(), np.intp, len(first))
