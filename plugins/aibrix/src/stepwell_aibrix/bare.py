"""AIBrix's connector with nothing of ours around it, for `stepwell bench storage`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import torch

from stepwell import ArenaView, PageKey, PageViews
from stepwell_aibrix.config import AibrixConfig
from stepwell_aibrix.connectors import Region, connect
from stepwell_aibrix.loop import LoopThread


class AibrixNative:
    """A connector of its own, in a folder beside the storage's."""

    def __init__(self, config: AibrixConfig, arena: ArenaView) -> None:
        own = config if config.path is None else replace(config, path=config.path.with_name(config.path.name + "-bare"))
        self._executor = ThreadPoolExecutor(config.threads)
        self._loop = LoopThread("stepwell.aibrix.bare")
        self._connector = connect(own, self._executor, safe=False)
        self._slab = torch.frombuffer(arena.memory, dtype=torch.uint8)
        self._start = arena.address
        self._keys: list[PageKey] = []

    def put(self, keys: Sequence[PageKey], pages: PageViews) -> None:
        self._keys += keys
        self._all("put", keys, self._regions(pages))

    def get(self, keys: Sequence[PageKey], into: PageViews) -> None:
        self._all("get", keys, self._regions(into))

    def close(self) -> None:
        self._all("delete", self._keys)
        self._loop.close()
        self._executor.shutdown()
        self._connector.close()

    def _regions(self, views: PageViews) -> list[Region]:
        size = int(views.sizes[0])
        return [Region(self._slab, at, size) for at in (views.addresses[:, 0] - self._start).tolist()]

    def _all(self, verb: str, *each: Sequence[object]) -> None:
        call = getattr(self._connector, verb)

        async def ask() -> None:
            for status in await asyncio.gather(*[call(*one) for one in zip(*each, strict=True)]):
                status.raise_if_not_ok()

        self._loop.run(ask())
