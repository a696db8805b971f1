"""The class that SGLang loads: `--hicache-storage-backend dynamic` with this module and `StepwellStore`.

It never raises once it is attached: SGLang takes an exception out of a background thread as the end of a transfer
without a word to the request. What fails is a page that is not there.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence

from stepwell_sglang import hits, settings
from stepwell_sglang.calls import Calls
from stepwell_sglang.flat import Flat, bytes_of
from stepwell_sglang.host import HiCacheStorage, HostKVCache, PoolTransfer, PoolTransferResult, StorageConfig, Tensor
from stepwell_sglang.library import Library
from stepwell_sglang.pools import is_logical, survey
from stepwell_sglang.shelf import Shelf

KV = "kv"
log = logging.getLogger("stepwell.sglang")


class StepwellStore(HiCacheStorage):  # type: ignore[misc]
    """SGLang's pages in a storage of Stepwell.

    v1 and v2 move pages of the registered host pools by slot; the older calls move tensors.
    """

    def __init__(self, storage_config: StorageConfig, kwargs: Mapping[str, object] | None = None) -> None:
        self._config = storage_config
        self._settings = settings.read(storage_config.extra_config or {})
        self._calls = Calls(self._settings.limits)
        try:
            self._library = Library(self._settings, self._calls, storage_config)
        except BaseException:
            self._calls.close(0)
            raise
        self._lock = threading.Lock()
        self._logical = False
        self._closed = False
        self.registered_pools: dict[str, HostKVCache] = {}
        self._metrics: dict[str, list[float]] = {
            name: [] for name in ("prefetch_pgs", "backup_pgs", "prefetch_bandwidth", "backup_bandwidth")
        }

    # --- registration --------------------------------------------------------------------------------------------

    def register_mem_pool_host(self, mem_pool_host: HostKVCache) -> None:
        """The anchor pool. ConfigError, one sentence, where its pages cannot be stored."""
        self.mem_pool_host = mem_pool_host
        self._logical = is_logical(mem_pool_host)
        if not self._logical:
            self._register(mem_pool_host, KV)

    def register_mem_host_pool_v2(self, host_pool: HostKVCache, host_pool_name: str) -> None:
        """A pool of a hybrid model; the anchor comes here again under its name."""
        name = _name(host_pool_name)
        self.registered_pools[name] = host_pool
        if not is_logical(host_pool):
            self._register(host_pool, name)

    def on_host_pools_registered(self) -> None:
        """All pools are known: lend their memory to the storage."""
        self._library.open()

    def _register(self, pool: HostKVCache, name: str) -> None:
        known = survey(pool, name, mla=self._config.is_mla_model)
        self._library.add(known)

    # --- v1: the anchor pool by slot -----------------------------------------------------------------------------

    def batch_exists(self, keys: list[str], extra_info: object = None) -> int:
        """How many pages from the first on are there."""
        shelf = self._shelf(KV)
        if shelf is not None:
            return hits.run(shelf.present(keys)) if keys else 0
        return 0

    def batch_get_v1(self, keys: list[str], host_indices: Tensor, extra_info: object = None) -> list[bool]:
        """Fill slots; of each page whether it is there whole."""
        if self._logical:
            return [True] * len(keys)
        return self._move(KV, keys, host_indices, reading=True)

    def batch_set_v1(self, keys: list[str], host_indices: Tensor, extra_info: object = None) -> list[bool]:
        """Store slots; of each page whether it is stored whole. A rank that is not the writer leaves it to that one."""
        if self._logical:
            return [True] * len(keys)
        return self._move(KV, keys, host_indices, reading=False)

    # --- v2: all pools -------------------------------------------------------------------------------------------

    def batch_exists_v2(
        self, keys: list[str], pool_transfers: list[PoolTransfer] | None = None, extra_info: object = None
    ) -> PoolTransferResult:
        """The longest prefix that every pool can serve, and what each pool has."""
        from sglang.srt.mem_cache.hicache_storage import PoolTransferResult as Result

        kv_pages = len(keys) if self._logical else self.batch_exists(keys, extra_info)
        sides = [self._side(keys[:kv_pages], transfer) for transfer in pool_transfers or []] if kv_pages else []
        found = hits.reach(kv_pages, sides)
        return Result(found.pages, dict(found.pools), found.lengths)  # type: ignore[no-any-return]

    def batch_get_v2(self, transfers: list[PoolTransfer], extra_info: object = None) -> dict[str, list[bool]]:
        """Fill slots of several pools."""
        return {one.name: self._transfer(one, reading=True) for one in transfers}

    def batch_set_v2(self, transfers: list[PoolTransfer], extra_info: object = None) -> dict[str, list[bool]]:
        """Store slots of several pools."""
        return {one.name: self._transfer(one, reading=False) for one in transfers}

    def _side(self, keys: list[str], transfer: PoolTransfer) -> hits.Side:
        policy = str(getattr(transfer.hit_policy, "value", transfer.hit_policy))
        asked = keys
        if policy == hits.GROUPS:
            asked = transfer.keys or _boundaries(keys, transfer.block_pages, transfer.group_pages)
        shelf = self._shelf(_name(transfer.name))
        present = shelf.present(asked) if shelf is not None and asked else [False] * len(asked)
        trailing = len(transfer.keys) if transfer.keys else 1
        return hits.Side(transfer.name, policy, present, trailing, transfer.block_pages, transfer.group_pages)

    # --- tensors -------------------------------------------------------------------------------------------------

    def exists(self, key: str) -> bool:
        """Whether the page is there, however it was stored."""
        flat = self._flat()
        return self.batch_exists([key]) == 1 or (flat is not None and flat.present([key])[0])

    def get(self, key: str, target_location: object = None, target_sizes: object = None) -> object:
        """The page in the tensor that is given, or in a new one; None where it is not there."""
        return self.batch_get([key], None if target_location is None else [target_location])[0]

    def batch_get(
        self, keys: list[str], target_locations: Sequence[object] | None = None, target_sizes: object = None
    ) -> list[object]:
        """Of each page the tensor that it is in, or None."""
        flat = self._flat()
        if flat is None or not keys:
            return [None] * len(keys)
        targets = list(target_locations or [self.mem_pool_host.get_dummy_flat_data_page() for _ in keys])  # type: ignore[attr-defined]
        good = flat.read(keys, [bytes_of(one) for one in targets])
        return [target if one else None for target, one in zip(targets, good, strict=True)]

    def set(self, key: str, value: object = None, target_location: object = None, target_sizes: object = None) -> bool:
        """Store a page that is a tensor."""
        return self.batch_set([key], [value if value is not None else target_location])

    def batch_set(
        self,
        keys: list[str],
        values: Sequence[object] | None = None,
        target_locations: object = None,
        target_sizes: object = None,
    ) -> bool:
        """Store pages that are tensors; whether all of them are stored."""
        flat = self._flat()
        if flat is None or values is None or len(values) != len(keys):
            return False
        if not self._config.is_storage_writer:
            return True
        whole = [value.contiguous() for value in values]  # type: ignore[attr-defined]
        pages = [bytes_of(value) for value in whole]
        return all(flat.fits(page) for page in pages) and all(flat.write(keys, pages))

    # --- administration ------------------------------------------------------------------------------------------

    def clear(self) -> None:
        """Delete this model's pages of this rank; those of others stay."""
        self._library.clear()

    def get_stats(self) -> object:
        """What was moved since the last time, in SGLang's form; None where it does not ask for metrics."""
        if not self._config.enable_storage_metrics:
            return None
        from sglang.srt.observability.metrics_collector import StorageMetrics

        with self._lock:
            taken = {name: list(values) for name, values in self._metrics.items()}
            for values in self._metrics.values():
                values.clear()
        return StorageMetrics(**taken)

    def values(self) -> dict[str, float]:
        """Stepwell's own counters and gauges by name."""
        return self._calls.guard.values()

    def close(self) -> None:
        """End all calls and release the storage. May be called again."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._library.close(self._calls.close())

    # --- inside --------------------------------------------------------------------------------------------------

    def _shelf(self, name: str) -> Shelf | None:
        try:
            return self._library.shelf(name)
        except Exception as error:  # SGLang before `on_host_pools_registered` learns of it here
            log.warning("the storage could not be opened: %s", error)
            return None

    def _flat(self) -> Flat | None:
        try:
            return self._library.flat(KV)
        except Exception as error:
            log.warning("the storage could not be opened: %s", error)
            return None

    def _transfer(self, one: PoolTransfer, *, reading: bool) -> list[bool]:
        return self._move(_name(one.name), one.keys or [], one.host_indices, reading=reading)

    def _move(self, name: str, keys: list[str], host_indices: Tensor | None, *, reading: bool) -> list[bool]:
        shelf = self._shelf(name)
        if shelf is None or not keys:
            return [False] * len(keys)
        if not reading and not shelf.pool.sharded and not self._config.is_storage_writer:
            return [True] * len(keys)
        pages = shelf.pool.pages(host_indices, len(keys))
        if pages is None:
            slots = 0 if host_indices is None else host_indices.numel()
            self._calls.guard.count("slots", len(keys), f"{slots} slots of {name!r} are not {len(keys)} whole pages")
            return [False] * len(keys)
        start = time.perf_counter()
        good = shelf.read(keys, pages) if reading else shelf.write(keys, pages)
        if name == KV and self._config.enable_storage_metrics:
            self._note("prefetch" if reading else "backup", sum(good), shelf.pool.page_bytes, start)
        return good

    def _note(self, what: str, pages: int, page_bytes: int, start: float) -> None:
        with self._lock:
            self._metrics[f"{what}_pgs"].append(pages)
            self._metrics[f"{what}_bandwidth"].append(pages * page_bytes / 1e9 / (time.perf_counter() - start))


def _name(name: str) -> str:
    """A pool's name as plain text; SGLang's are an enumeration."""
    return str(getattr(name, "value", name))


def _boundaries(keys: Sequence[str], block_pages: int, group_pages: int) -> list[str]:
    """The pages that end each whole block: where a second form of the block's pages is kept."""
    if block_pages <= 0 or not 0 < group_pages <= block_pages:
        return []
    ends = range(block_pages, len(keys) + 1, block_pages)
    return [key for end in ends for key in keys[end - group_pages : end]]
