"""NIXL alone on the same layouts, for `stepwell bench storage`: no journal, no eviction, no thought of others."""

from __future__ import annotations

import itertools
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from stepwell import ArenaView, Context, PageKey, PageViews
from stepwell_nixl.bucket import Bucket, installed, name_of
from stepwell_nixl.client import Agent, Rows, make_agent, make_ucx_agent
from stepwell_nixl.config import NixlConfig, ObjConfig, UcxConfig, devices_for
from stepwell_nixl.files import can_direct, open_folder
from stepwell_nixl.obj import Numbers, make_client
from stepwell_nixl.transfer import PAUSE_S, Op, rows
from stepwell_nixl.ucx import connect, name_of_peer
from stepwell_nixl.wire import Allocate, Lent

T = TypeVar("T")

NATIVE = "stepwell-native/"
"""What the names of objects begin with."""
ROOM = 8
"""Arenas of pages that fit in a file."""


class NativeFolder:
    """Pages one after another in one file, written over from its start when it is full."""

    def __init__(self, config: NixlConfig, context: Context, arena: ArenaView) -> None:
        self._arena, self._config = arena, config
        open_folder(config).close()
        self._direct = can_direct(config, config.direct)
        self._folder = Path(mkdtemp(prefix="native-", dir=config.path))
        self._nbytes = min(ROOM * arena.nbytes, int(config.gib * (1 << 30)))
        self._fd = os.open(self._folder / "pages", os.O_RDWR | os.O_CREAT | (os.O_DIRECT if self._direct else 0))
        os.posix_fallocate(self._fd, 0, self._nbytes)
        self._agents = Pool(self._agent)
        self._next = itertools.count()
        self._slots: dict[PageKey, int] = {}

    def put(self, keys: Sequence[PageKey], pages: PageViews) -> None:
        self._slots.update((key, next(self._next)) for key in keys)
        self._move("WRITE", keys, pages)

    def get(self, keys: Sequence[PageKey], into: PageViews) -> None:
        self._move("READ", keys, into)

    def close(self) -> None:
        os.close(self._fd)
        shutil.rmtree(self._folder)

    def _move(self, op: Op, keys: Sequence[PageKey], pages: PageViews) -> None:
        size = int(pages.sizes[0])
        room = self._nbytes // size
        offsets = [self._slots[key] % room * size for key in keys]
        with self._agents.one() as agent:
            fly(agent, op, rows(pages.addresses[:, 0], size), "FILE", rows(offsets, size, self._fd))

    def _agent(self) -> Agent:
        agent = make_agent("POSIX", {f"use_{self._config.engine}": "true"}, "engine")
        agent.register_memory([(self._arena.address, self._arena.nbytes, 0, "")], "DRAM")
        agent.register_memory([(0, self._nbytes, self._fd, "")], "FILE")
        return agent


class NativeBucket:
    """Each batch one transfer of as many objects."""

    def __init__(self, config: ObjConfig, context: Context, arena: ArenaView) -> None:
        self._config, self._arena = config, arena
        self._numbers = Numbers()
        self._agents = Pool(self._agent)

    def put(self, keys: Sequence[PageKey], pages: PageViews) -> None:
        self._move("WRITE", keys, pages)

    def get(self, keys: Sequence[PageKey], into: PageViews) -> None:
        self._move("READ", keys, into)

    def close(self) -> None:
        if installed():
            bucket = Bucket(replace(self._config, prefix=NATIVE))
            for some in bucket.scan():
                bucket.delete([page.key for page in some])

    def _move(self, op: Op, keys: Sequence[PageKey], pages: PageViews) -> None:
        size = int(pages.sizes[0])
        numbers = self._numbers.take(len(keys))
        objects = [(0, size, number, name_of(NATIVE, key)) for number, key in zip(numbers, keys, strict=True)]
        with self._agents.one() as agent:
            registered = agent.register_memory(objects, "OBJ")
            fly(agent, op, rows(pages.addresses[:, 0], size), "OBJ", rows([0] * len(keys), size, numbers))
            agent.deregister_memory(registered)

    def _agent(self) -> Agent:
        agent = make_client(self._config)
        agent.register_memory([(self._arena.address, self._arena.nbytes, 0, "")], "DRAM")
        return agent


class NativePeer:
    """Slots that are asked for once and written over; the peer must have room for two arenas.

    As many as the arena has pages: the bench forgets the storage's pages after each round, and the peer gives the
    slots that were used last first, so the storage goes through as much memory.
    """

    def __init__(self, config: UcxConfig, context: Context, arena: ArenaView) -> None:
        self._config, self._arena = config, arena
        self._line, self._welcome = connect(config)
        self._addresses: npt.NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._slots: dict[PageKey, int] = {}
        self._next = itertools.count()
        self._asking = threading.Lock()
        self._agents = Pool(self._agent)

    def put(self, keys: Sequence[PageKey], pages: PageViews) -> None:
        with self._asking:
            if not len(self._addresses):
                self._ask(int(pages.sizes[0]))
        self._slots.update((key, next(self._next)) for key in keys)
        self._move("WRITE", keys, pages)

    def get(self, keys: Sequence[PageKey], into: PageViews) -> None:
        self._move("READ", keys, into)

    def close(self) -> None:
        self._line.close()

    def _ask(self, size: int) -> None:
        keys = [os.urandom(40) for _ in range(self._arena.nbytes // size)]
        lent = self._line.ask(Allocate(b"".join(keys), size), Lent)
        self._addresses = np.frombuffer(lent.addresses, dtype=np.int64)
        if (self._addresses < 0).any():
            raise OSError("the peer has too little memory: two arenas are needed")

    def _move(self, op: Op, keys: Sequence[PageKey], pages: PageViews) -> None:
        size = int(pages.sizes[0])
        far = self._addresses[[self._slots[key] % len(self._addresses) for key in keys]]
        with self._agents.one() as (agent, peer):
            fly(agent, op, rows(pages.addresses[:, 0], size), "DRAM", rows(far, size), peer)

    def _agent(self) -> tuple[Agent, str]:
        devices = devices_for(self._config.address[0], self._config.devices)
        agent = make_ucx_agent(devices)
        agent.register_memory([(self._arena.address, self._arena.nbytes, 0, "")], "DRAM")
        return agent, name_of_peer(agent.add_remote_agent(self._welcome.metadata))


def fly(agent: Agent, op: Op, near: Rows, memory: str, far: Rows, peer: str = "") -> None:
    """One transfer, from its beginning to its end."""
    handle = agent.initialize_xfer(
        op, agent.get_xfer_descs(near, "DRAM"), agent.get_xfer_descs(far, memory), peer or agent.name
    )
    state = agent.transfer(handle)
    while state != "DONE":
        time.sleep(PAUSE_S)
        state = agent.check_xfer_state(handle)
    agent.release_xfer_handle(handle)


class Pool(Generic[T]):
    """As many of something as calls are under way. Not one a thread: whoever calls may bring new threads each time."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._idle: list[T] = []

    @contextmanager
    def one(self) -> Iterator[T]:
        """One for one call."""
        try:
            one = self._idle.pop()
        except IndexError:
            one = self._make()
        yield one
        self._idle.append(one)
