"""Which storage holds which pool's pages, and by way of which memory.

A storage is lent one arena, and SGLang has several buffers. So a storage that moves memory itself is made once for each
buffer, and once more for memory of ours (seals, tensors); one that takes any memory is made once. One that reaches only
memory with a name in /dev/shm is made once, too, and pages are copied through such memory of ours.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Sequence

from stepwell import Capability, ConfigError, PluginError, StepwellError, Storage
from stepwell.cache.arena import TRAILER_BYTES
from stepwell.types import DIGEST_BYTES
from stepwell_sglang.calls import Calls
from stepwell_sglang.flat import Flat
from stepwell_sglang.host import StorageConfig
from stepwell_sglang.memory import BLOCK, Region, Scratch, Slots
from stepwell_sglang.names import Names, Shard
from stepwell_sglang.pools import Part, Pool
from stepwell_sglang.settings import Settings
from stepwell_sglang.shelf import Shelf, Wing

SEALS = 1024
LEAST_SLOTS = 8
log = logging.getLogger("stepwell.sglang")


class Library:
    """Shelves by the name of their pool. `open` lends memory; what comes later is lent as it comes."""

    def __init__(self, settings: Settings, calls: Calls, config: StorageConfig) -> None:
        self._settings, self._calls, self._config = settings, calls, config
        provides = settings.choice.provides
        self._copied = Capability.NAMED_MEMORY in provides
        self._apiece = Capability.ZERO_COPY in provides and not self._copied
        self._shared = Capability.SHARED in provides
        checks = Capability.CHECKS in provides
        self.sealing = not checks if settings.verify == "auto" else settings.verify
        # One that moves memory itself has its own ways to do much at once; calls beside each other only contend.
        fitting = 1 if self._apiece else calls.limits.threads
        self._cuts = fitting if settings.calls == "auto" else settings.calls
        self._storages = [settings.storage(0, config.tp_rank, config.tp_size)]
        self._lent: dict[int, Storage] = {}
        self._scratch: Scratch | None = None
        self._pools: dict[str, Pool] = {}
        self._shelves: dict[str, Shelf] = {}
        self._flat: Flat | None = None
        self._opened = self._closed = False
        self._lock = threading.RLock()

    def add(self, pool: Pool) -> None:
        """Take a pool in. Raises StepwellError, one sentence."""
        with self._lock:
            self._pools[pool.name] = pool
            if self._opened:
                self._shelves[pool.name] = self._shelf(pool)

    def open(self) -> None:
        """Lend the memory of all pools. Raises StepwellError, one sentence."""
        with self._lock:
            if self._opened or self._closed:
                return
            for name, pool in self._pools.items():
                self._shelves[name] = self._shelf(pool)
            self._opened = True

    def shelf(self, name: str) -> Shelf | None:
        """The shelf of a pool; None where there is none."""
        if not self._opened:
            self.open()
        return self._shelves.get(name)

    def flat(self, name: str) -> Flat | None:
        """Where pages that come as tensors go; `name`: the pool that they are pages of."""
        with self._lock:
            pool = self._pools.get(name)
            if self._flat is None and pool is not None and not self._closed:
                self.open()
                names = Names({**self._parts(pool), "pool": "flat"})
                slots = self._ours().pages
                self._flat = Flat(names, self._lend(slots.region), slots, self._calls)
            return self._flat

    def clear(self) -> None:
        """Delete what this rank keeps of this model, and nothing else."""
        with self._lock:
            tags = frozenset().union(*(shelf.tags for shelf in self._shelves.values()))
            tags |= {self._flat.tag} if self._flat else set()
            storages = self._storages[:1] if self._shared else list(self._storages)
        for storage in storages:
            try:
                for batch in storage.scan():
                    mine = [page.key for page in batch if page.key[DIGEST_BYTES:] in tags]
                    if mine:
                        storage.delete(mine)
            except NotImplementedError:
                log.warning("%s cannot list its pages: nothing was cleared", self._settings.choice.offer.name)
            except Exception as error:
                log.warning("storage was not cleared: %s: %s", type(error).__name__, error)

    def close(self, returned: bool) -> None:
        """Release all storages; `returned`: no call is under way in any."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            storages = list(self._storages)
        if not returned:
            log.warning("storage is left open: calls have not returned")
            return
        for storage in storages:
            try:
                storage.close()
            except Exception as error:
                log.warning("storage failed to close: %s: %s", type(error).__name__, error)

    # --- shelves -------------------------------------------------------------------------------------------------

    def _shelf(self, pool: Pool) -> Shelf:
        names = Names(self._parts(pool))
        groups: dict[tuple[int, int], list[int]] = defaultdict(list)
        for number, part in enumerate(pool.parts):
            groups[part.region.address, part.nbytes].append(number)
        wings = [self._wing(names, pool.parts[numbers[0]], numbers) for numbers in groups.values()]
        if not self.sealing:
            return Shelf(pool, names, wings, self._calls, wings[0].storage, None, self._cuts)
        slots = self._ours().seals
        return Shelf(pool, names, wings, self._calls, self._lend(slots.region), slots, self._cuts)

    def _wing(self, names: Names, part: Part, numbers: Sequence[int]) -> Wing:
        bounce = self._bounce(part.nbytes) if self._copied else None
        storage = self._lend(bounce.region if bounce else part.region)
        tags = tuple(names.tag(str(number)) for number in numbers)
        return Wing(tuple(numbers), tags, part.nbytes, part.region, storage, bounce)

    def _bounce(self, nbytes: int) -> Slots:
        slots = self._ours().pages
        if nbytes > slots.nbytes:
            raise ConfigError(
                f"a host pool of SGLang that came late has parts of {nbytes} bytes, and the memory that pages are "
                f"copied through has room for {slots.nbytes}: start SGLang with that pool from the beginning"
            )
        return slots

    def _parts(self, pool: Pool) -> dict[str, str | None]:
        config = self._config
        shard = Shard(
            tp=(config.tp_rank, config.tp_size) if pool.sharded else None,
            pp=(config.pp_rank, config.pp_size),
            cp=(config.attn_cp_rank, config.attn_cp_size),
            dcp=(config.dcp_rank, config.dcp_size),
        )
        named = {"model": config.model_name, "revision": self._settings.revision, "pool": pool.name}
        return {**named, **shard.parts(), **dict(pool.traits)}

    # --- storages and the memory they are lent -------------------------------------------------------------------

    def _lend(self, region: Region) -> Storage:
        """The storage that may move this memory."""
        at = region.address if self._apiece else 0
        if at not in self._lent:
            self._lent[at] = self._attached(region if self._apiece else self._ours().region)
        return self._lent[at]

    def _attached(self, region: Region) -> Storage:
        nth = len(self._lent)
        if nth == len(self._storages):
            self._storages.append(self._settings.storage(nth, self._config.tp_rank, self._config.tp_size))
        storage = self._storages[nth]
        try:
            storage.attach(region)
        except StepwellError:
            raise
        except Exception as error:
            name, size = self._settings.choice.offer.name, region.nbytes / 2**30
            raise PluginError(
                f"storage.use = {name!r}: the {size:.1f} GiB of SGLang's host memory cannot be lent to it "
                f"({type(error).__name__}: {error})"
            ) from error
        if self._scratch is not None and region is self._scratch.region:
            self._scratch.unname()  # it had to be found by name until now, and must not be left there by a kill
        return storage

    def _ours(self) -> Scratch:
        if self._scratch is None:
            pools = self._pools.values()
            page = max((pool.page_bytes for pool in pools), default=BLOCK) + TRAILER_BYTES
            busy = self._copied or not self._settings.zero_copy
            count = max(LEAST_SLOTS, self._settings.bounce_bytes // page) if busy else LEAST_SLOTS
            self._scratch = Scratch(SEALS if self.sealing else 0, count, page, named=self._copied)
        return self._scratch
