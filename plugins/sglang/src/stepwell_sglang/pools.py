"""Where the pages of a host pool of SGLang lie, learnt from the pool once: after that an address is a multiplication.

A pool answers `get_page_buffer_meta` with a pointer and a size for each part of a page (K and V; a latent; states).
That is a loop in Python over every page. All pools in use lie evenly, so asking for a few pages tells where all others
are, and a pool that does not is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import cast

import numpy as np
import numpy.typing as npt

from stepwell import ConfigError
from stepwell_sglang.host import HostKVCache, Tensor
from stepwell_sglang.memory import Addresses, Region, regions

LAYOUTS = ("page_first", "page_first_direct")
Pages = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Part:
    """A run of bytes that each page has: page p's lies at `base + p * stride`."""

    base: int
    stride: int
    nbytes: int
    region: Region


@dataclass(frozen=True, slots=True)
class Pool:
    """A host pool as its pages lie."""

    name: str
    tokens: int
    """Slots a page."""
    count: int
    """Pages in all."""
    parts: tuple[Part, ...]
    regions: tuple[Region, ...]
    sharded: bool
    """Whether tensor-parallel ranks hold different bytes."""
    traits: tuple[tuple[str, str], ...]
    """What else decides how a page looks, for its namespace."""

    @property
    def page_bytes(self) -> int:
        """Bytes of a page, all parts."""
        return sum(part.nbytes for part in self.parts)

    def pages(self, host_indices: Tensor | None, count: int) -> Pages | None:
        """The pages that these slots are, None where they are not `count` whole pages of the pool."""
        if host_indices is None or host_indices.numel() != count * self.tokens:
            return None
        slots = np.asarray(host_indices.cpu().numpy(), np.int64).reshape(count, self.tokens)
        pages, inside = np.divmod(slots[:, 0], self.tokens)
        whole = (slots == slots[:, :1] + np.arange(self.tokens)).all() and not inside.any()
        if not whole or (count and (pages.min() < 0 or pages.max() >= self.count)):
            return None
        return pages

    def addresses(self, parts: Sequence[int], pages: Pages) -> Addresses:
        """Addresses [pages, parts]."""
        base = np.array([self.parts[part].base for part in parts], np.int64)
        stride = np.array([self.parts[part].stride for part in parts], np.int64)
        return base + pages[:, None] * stride


def is_logical(pool: HostKVCache) -> bool:
    """Whether this is an anchor that only numbers slots, and has no memory of its own."""
    return getattr(pool, "kv_buffer", None) is None and not hasattr(pool, "get_hybrid_pool_buffer")


def survey(pool: HostKVCache, name: str, *, mla: bool) -> Pool:
    """Learn a pool. Raises ConfigError, one sentence, for one that cannot be read and written by page."""
    layout = getattr(pool, "layout", None)
    if layout not in LAYOUTS:
        raise ConfigError(
            f"the host pool {name!r} of SGLang has the layout {layout!r}, in which a page is not in one piece: start "
            f"SGLang with --hicache-mem-layout {' or '.join(LAYOUTS)}"
        )
    if not hasattr(pool, "get_page_buffer_meta"):
        raise ConfigError(f"the host pool {name!r} of SGLang ({type(pool).__name__}) does not say where its pages lie")
    tokens = max(1, int(getattr(pool, "logical_page_size", None) or pool.page_size or 1))
    count = int(getattr(pool, "logical_size", None) or pool.size) // tokens
    held = tuple(regions(_ranges(pool)))
    pointers, sizes = _ask(pool, name, tokens, 0)
    step = [one - zero for zero, one in zip(pointers, _ask(pool, name, tokens, 1)[0], strict=True)] if count > 1 else []
    parts = []
    for base, stride, nbytes in zip(pointers, step or [0] * len(pointers), sizes, strict=True):
        region = next((one for one in held if one.holds(base, (count - 1) * stride + nbytes)), None)
        if region is None:
            raise ConfigError(
                f"the host pool {name!r} of SGLang ({type(pool).__name__}) has pages outside of the memory it names"
            )
        parts.append(Part(base, stride, nbytes, region))
    for page in {count // 2, count - 1}:
        expected = [part.base + page * part.stride for part in parts], [part.nbytes for part in parts]
        if _ask(pool, name, tokens, page) != expected:
            raise ConfigError(
                f"the pages of the host pool {name!r} of SGLang ({type(pool).__name__}) do not lie evenly, which this "
                "version of stepwell-sglang does not read"
            )
    return Pool(name, tokens, count, tuple(parts), held, _sharded(pool, mla), _traits(pool, tokens, sizes))


def _ask(pool: HostKVCache, name: str, tokens: int, page: int) -> tuple[list[int], list[int]]:
    import torch

    try:
        pointers, sizes = pool.get_page_buffer_meta(torch.arange(page * tokens, (page + 1) * tokens))
    except Exception as error:  # whatever the pool objects to is the reason
        raise ConfigError(f"the host pool {name!r} of SGLang cannot be stored by page: {error}") from None
    return [int(one) for one in pointers], [int(one) for one in sizes]


def _ranges(pool: HostKVCache) -> list[tuple[int, int]]:
    """(address, bytes) of the pool's tensors."""
    hybrid = pool.get_hybrid_pool_buffer() if hasattr(pool, "get_hybrid_pool_buffer") else []
    main = getattr(pool, "kv_buffer", None)
    mains = [main] if hasattr(main, "data_ptr") else list(main or [])
    tensors = cast("list[Tensor]", [one for one in chain(mains, hybrid) if one is not None])
    return [(one.data_ptr(), one.numel() * one.element_size()) for one in tensors]


def _sharded(pool: HostKVCache, mla: bool) -> bool:
    """Of a model with latent KV the pools are the same on every rank, but for those cut by heads and states."""
    return not mla or hasattr(pool, "head_num") or hasattr(pool, "temporal_buffer")


def _traits(pool: HostKVCache, tokens: int, sizes: Sequence[int]) -> tuple[tuple[str, str], ...]:
    traits = {
        "dtype": str(pool.dtype),
        "layout": pool.layout,
        "page_size": str(tokens),
        "parts": ",".join(map(str, sizes)),
        "kind": type(pool).__name__,
    }
    for trait in ("layer_num", "head_num", "head_dim", "v_head_dim", "kv_cache_dim", "temporal_dtype", "indexer_dtype"):
        if hasattr(pool, trait):
            traits[trait] = str(getattr(pool, trait))
    return tuple(traits.items())
