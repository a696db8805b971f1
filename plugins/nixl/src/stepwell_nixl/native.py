"""NIXL alone on the same layout, for `stepwell bench storage`: no journal, no eviction, no thought of others."""

from __future__ import annotations

import itertools
import os
import shutil
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import mkdtemp
from typing import Literal

from stepwell import ArenaView, Context, PageKey, PageViews
from stepwell_nixl.client import Agent, make_agent
from stepwell_nixl.config import NixlConfig
from stepwell_nixl.files import can_direct, open_folder
from stepwell_nixl.transfer import PAUSE_S, rows

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
        self._agents = threading.local()
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

    def _move(self, op: Literal["READ", "WRITE"], keys: Sequence[PageKey], pages: PageViews) -> None:
        agent = self._agent()
        size = int(pages.sizes[0])
        room = self._nbytes // size
        offsets = [self._slots[key] % room * size for key in keys]
        near = agent.get_xfer_descs(rows(pages.addresses[:, 0], size), "DRAM")
        handle = agent.initialize_xfer(
            op, near, agent.get_xfer_descs(rows(offsets, size, self._fd), "FILE"), agent.name
        )
        state = agent.transfer(handle)
        while state != "DONE":
            time.sleep(PAUSE_S)
            state = agent.check_xfer_state(handle)
        agent.release_xfer_handle(handle)

    def _agent(self) -> Agent:
        """The one of this thread."""
        agent: Agent | None = getattr(self._agents, "agent", None)
        if agent is None:
            agent = make_agent("POSIX", {f"use_{self._config.engine}": "true"}, "engine")
            agent.register_memory([(self._arena.address, self._arena.nbytes, 0, "")], "DRAM")
            agent.register_memory([(0, self._nbytes, self._fd, "")], "FILE")
            self._agents.agent = agent
        return agent
