"""Calls of the library. A rank that it waits for in vain it marks in a tensor of ours, and goes on without."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import distributed

from stepwell import ConfigError, Traffic
from stepwell_kernels.dispatch.hooked import Arriving, Hook, HookedDispatcher
from stepwell_kernels.dispatch.library import Peers
from stepwell_mooncake_ep.config import MooncakeEPConfig

NAME = "mooncake-ep"


class MooncakeEP(HookedDispatcher):
    """Over `mooncake.mooncake_ep_buffer.Buffer`, which is torn down with the last reference to it."""

    def __init__(self, library: ModuleType, config: MooncakeEPConfig, join: Callable[[], Peers]) -> None:
        super().__init__(NAME, join, config.capacity, config.tokens == "float8")
        self._library = library
        self._timeout_us = int(config.timeout_s * 1e6)
        self._buffer: Any = None

    def _make(self, traffic: Traffic, peers: Peers, capacity: int) -> None:
        buffer = self._library.Buffer
        size = buffer.get_ep_buffer_size_hint(capacity, traffic.hidden, peers.size, traffic.experts)
        group = peers.named(NAME, distributed.PrefixStore(NAME, peers.store))
        try:
            self._buffer = buffer(group, size)
        except RuntimeError as error:
            said = (str(error).strip().splitlines() or [""])[0]
            why = f"{size / 2**20:.0f} MiB for {capacity} tokens of a rank cannot be had ({said}): lower capacity"
            raise ConfigError(f"dispatch {NAME!r}: {why}") from error
        # Its stand-in in Python would do; it is slower than collectives, which somebody who wants them can choose.
        if getattr(self._buffer, "_use_fallback", False):
            why = "neither NVLink nor network cards that GPUs drive (IBGDA) connect all ranks: use collective"
            raise ConfigError(f"dispatch {NAME!r}: {why}")
        self._active = torch.ones(peers.size, dtype=torch.int32, device=peers.device)

    def _dispatch(self, tokens: torch.Tensor, experts: torch.Tensor, hooked: bool) -> Arriving:
        rows, counts, handle, _, hook = self._buffer.dispatch(
            tokens,
            experts,
            self._active,
            self._most,
            self._experts,
            self._timeout_us,
            use_fp8=self._float8,
            return_recv_hook=hooked,
        )
        return Arriving(rows, counts, handle, hook)

    def _combine(
        self, outputs: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor, handle: object, hooked: bool
    ) -> tuple[torch.Tensor, Hook | None]:
        sums, _, hook = self._buffer.combine(
            outputs, experts, weights, self._active, self._timeout_us, handle, return_recv_hook=hooked
        )
        return sums, hook

    def _silent(self) -> torch.Tensor:
        return self._active == 0

    def _free(self) -> None:
        self._buffer = None
