"""What this package uses of SGLang's types, and the class that its storages descend from.

SGLang is imported where it is there. Without it everything here can still be imported; only making a store needs it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class Tensor(Protocol):
    """The part of a CPU tensor that is looked at."""

    def data_ptr(self) -> int: ...
    def numel(self) -> int: ...
    def element_size(self) -> int: ...
    def cpu(self) -> Tensor: ...
    def numpy(self) -> npt.NDArray[np.int64]: ...


class HostKVCache(Protocol):
    """A host pool of SGLang."""

    page_size: int
    size: int
    layout: str
    dtype: object

    def get_page_buffer_meta(self, indices: object) -> tuple[Sequence[int], Sequence[int]]: ...


class StorageConfig(Protocol):
    """`HiCacheStorageConfig`."""

    tp_rank: int
    tp_size: int
    pp_rank: int
    pp_size: int
    attn_cp_rank: int
    attn_cp_size: int
    dcp_rank: int
    dcp_size: int
    is_mla_model: bool
    enable_storage_metrics: bool
    model_name: str | None
    extra_config: Mapping[str, object] | None

    @property
    def is_storage_writer(self) -> bool: ...


class PoolTransfer(Protocol):
    """`PoolTransfer`, as storages see it."""

    name: str
    host_indices: Tensor | None
    keys: list[str] | None
    hit_policy: str
    block_pages: int
    group_pages: int


class PoolTransferResult(Protocol):
    """`PoolTransferResult`."""

    kv_hit_pages: int
    extra_pool_hit_pages: dict[str, int]
    restorable_prefix_pages: list[int] | None


try:
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorage
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] != "sglang":
        raise

    class HiCacheStorage:  # type: ignore[no-redef]
        """Stands in where SGLang is not installed."""


__all__ = [
    "HiCacheStorage",
    "HostKVCache",
    "PoolTransfer",
    "PoolTransferResult",
    "StorageConfig",
    "Tensor",
]
