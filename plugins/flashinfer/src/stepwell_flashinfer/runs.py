"""The library's wrappers, one for each kind of layers and steps: planned on the host, run by every layer.

A plan packs numbers into pinned memory of the wrapper's own and enqueues their copy, so the next plan of it waits until
that copy is over. A step is enqueued when the one before the last has ended, and the copy stands first in its step: by
then there is next to nothing to wait for.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import torch

from stepwell import AttentionLayers, AttentionRows, AttentionRun, Window

NHD = "NHD"
"""Pages are [page_size, kv_heads, dim]."""
NUMBERS = 2 << 20
"""Bytes of what a plan of a graph says; it grows with the device's processors, not with the rows."""
Graph = tuple[int, int]
"""Rows and pages that a graph has room for."""


class Space:
    """Memory that runs share, since one ends before another begins."""

    def __init__(self, parts: torch.Tensor) -> None:
        self.parts, self.device = parts, parts.device
        self._indices: dict[AttentionLayers, torch.Tensor] = {}

    def indices(self, layers: AttentionLayers, pages: int) -> torch.Tensor:
        """For page ids of graphs of some layers, which are planned one at a time; the largest comes first."""
        if len(self._indices.get(layers, ())) < pages:
            self._indices[layers] = self.numbers(pages)
        return self._indices[layers][:pages]

    def numbers(self, count: int) -> torch.Tensor:
        """int32 numbers of a graph's own."""
        return torch.zeros(count, dtype=torch.int32, device=self.device)


class _Run(AttentionRun[torch.Tensor]):
    """What all of them do: say what rows there are, and attend."""

    def __init__(self, layers: AttentionLayers, space: Space, wrapper: Any) -> None:
        self._layers, self._space, self._wrapper = layers, space, wrapper
        self._dtype: torch.dtype = getattr(torch, layers.dtype)
        self._planned = torch.cuda.Event() if space.device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def plan(self, rows: AttentionRows) -> None:
        size = self._layers.page_size
        if self._planned is not None:
            self._planned.synchronize()
        ends = _ends(-(-rows.tokens // size))
        last = (rows.tokens - 1) % size + 1
        pages = self._host(rows.pages).to(self._space.device, non_blocking=True)
        self._tell(self._host(_ends(rows.counts)), self._host(ends), pages, self._host(last))
        if self._planned is not None:
            self._planned.record()

    def run(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        out: torch.Tensor,
        sinks: torch.Tensor | None = None,
    ) -> None:
        self._wrapper.run(query, (keys, values), out=out)

    def _tell(self, queries: torch.Tensor, ends: torch.Tensor, pages: torch.Tensor, last: torch.Tensor) -> None:
        """Plan: where each row's queries and pages end, all on the host but the pages, and tokens in its last page."""
        raise NotImplementedError

    def _host(self, numbers: np.ndarray[Any, np.dtype[np.int32]]) -> torch.Tensor:
        """In pinned memory from torch's own cache, so that the library's copies of it wait for nothing."""
        there = torch.from_numpy(numbers.astype(np.int32))
        return there.pin_memory() if self._space.device.type == "cuda" else there

    @property
    def _asked(self) -> dict[str, Any]:
        """What every plan says of the layers."""
        layers = self._layers
        return {
            "window_left": _window(layers),
            "logits_soft_cap": layers.softcap,
            "sm_scale": layers.scale,
            "q_data_type": self._dtype,
            "kv_data_type": self._dtype,
        }


class Decodes(_Run):
    """Rows of one token, by the library's decode."""

    def __init__(
        self, library: ModuleType, layers: AttentionLayers, space: Space, tensor_cores: bool, graph: Graph | None
    ) -> None:
        kept: dict[str, Any] = {}
        if graph is not None:
            rows, pages = graph
            kept = {
                "use_cuda_graph": True,
                "paged_kv_indptr_buffer": space.numbers(rows + 1),
                "paged_kv_indices_buffer": space.indices(layers, pages),
                "paged_kv_last_page_len_buffer": space.numbers(rows),
            }
        wrapper = library.BatchDecodeWithPagedKVCacheWrapper(
            space.parts, NHD, use_tensor_cores=tensor_cores, backend="fa2", **kept
        )
        super().__init__(layers, space, wrapper)
        if graph is not None:
            _shrink(wrapper, space)

    def _tell(self, queries: torch.Tensor, ends: torch.Tensor, pages: torch.Tensor, last: torch.Tensor) -> None:
        layers = self._layers
        shape = layers.heads, layers.kv_heads, layers.key_dim, layers.page_size
        self._wrapper.plan(ends, pages, last, *shape, **self._asked)


class Prompts(_Run):
    """Rows of any number of tokens, by the library's prefill."""

    def __init__(self, library: ModuleType, layers: AttentionLayers, space: Space, backend: str) -> None:
        wrapper = library.BatchPrefillWithPagedKVCacheWrapper(space.parts, NHD, backend=backend)
        super().__init__(layers, space, wrapper)

    def _tell(self, queries: torch.Tensor, ends: torch.Tensor, pages: torch.Tensor, last: torch.Tensor) -> None:
        layers = self._layers
        shape = layers.heads, layers.kv_heads, layers.key_dim, layers.page_size
        self._wrapper.plan(queries, ends, pages, last, *shape, causal=True, **self._asked)


class WithSinks(Prompts):
    """Rows of layers with sinks, those of one token too: the library has a variant of its prefill for them."""

    def __init__(
        self, library: ModuleType, layers: AttentionLayers, space: Space, backend: str, graph: Graph | None = None
    ) -> None:
        dtype, kept = getattr(torch, layers.dtype), {}
        if graph is not None:
            rows, pages = graph
            kept = {
                "use_cuda_graph": True,
                "qo_indptr_buf": space.numbers(rows + 1),
                "paged_kv_indptr_buf": space.numbers(rows + 1),
                "paged_kv_indices_buf": space.indices(layers, pages),
                "paged_kv_last_page_len_buf": space.numbers(rows),
            }
        wrapper = library.BatchAttentionWithAttentionSinkWrapper(
            space.parts,
            NHD,
            backend=backend,
            q_data_type=dtype,
            kv_data_type=dtype,
            head_dim_qk=layers.key_dim,
            head_dim_vo=layers.value_dim,
            window_left=_window(layers),
            **kept,
        )
        _Run.__init__(self, layers, space, wrapper)
        if graph is not None:
            _shrink(wrapper, space)

    def run(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        out: torch.Tensor,
        sinks: torch.Tensor | None = None,
    ) -> None:
        assert sinks is not None
        self._wrapper.run(query, (keys, values), sinks, self._layers.scale, out=out)


def _window(layers: AttentionLayers) -> int:
    """Tokens of history beside the query itself; -1: all."""
    return layers.need.tokens if isinstance(layers.need, Window) else -1


def _ends(counts: np.ndarray[Any, np.dtype[np.int32]]) -> np.ndarray[Any, np.dtype[np.int32]]:
    """0, and where each ends."""
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)


def _shrink(wrapper: Any, space: Space) -> None:
    """There is a wrapper for each graph, and its own memory for plans, on either side, is made for any step."""
    wrapper.reset_workspace_buffer(space.parts, torch.empty(NUMBERS, dtype=torch.uint8, device=space.device))
