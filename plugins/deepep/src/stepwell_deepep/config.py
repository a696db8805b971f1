"""The settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from stepwell import Capability
from stepwell_kernels.dispatch.fit import MOST

Chunks = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class NormalConfig:
    """The `[runner.dispatch]` table when `use = "deepep"`."""

    num_sms: int = 20
    """Multiprocessors that its kernels take; even."""
    dispatch_chunks: Chunks | None = None
    """Tokens a rank sends and receives at a time, over NVLink and then over RDMA; unset: the library's own for so many
    ranks."""
    combine_chunks: Chunks | None = None
    """The same of the way back."""
    timeout_s: float = 60.0
    """How long ranks wait for each other when they meet. Later the library waits for its own 100 s."""

    def __post_init__(self) -> None:
        if self.num_sms < 2 or self.num_sms % 2:
            raise ValueError(f"num_sms: {self.num_sms} is not an even number above 0")
        for name in ("dispatch_chunks", "combine_chunks"):
            chunks = getattr(self, name)
            if chunks is not None and not (0 < chunks[0] < chunks[1] and 0 < chunks[2] <= chunks[3] // 2):
                raise ValueError(f"{name}: {list(chunks)} sends as much as it receives; RDMA's may be half of it")
        _positive(self.timeout_s)


@dataclass(frozen=True, slots=True)
class ElasticConfig:
    """The `[runner.dispatch]` table when `use = "deepep-v2"`."""

    sizes: Literal["exact", "bound"] = "exact"
    """exact: the host waits for how many tokens come; bound: there is room for all that could, and nobody waits, so
    that it goes into CUDA graphs."""
    capacity: int = 128
    """Tokens of a rank for which `bound` has room; `exact` takes whatever a step may have."""
    num_sms: int = 0
    """Multiprocessors that its kernels take; 0: as many as it thinks right."""
    hybrid: bool = False
    """Over NVLink within a node and RDMA between nodes; off: straight to each rank."""
    timeout_s: int = 60
    """How long ranks wait for each other."""

    def __post_init__(self) -> None:
        if self.capacity < 1:
            raise ValueError(f"capacity: {self.capacity} is less than 1")
        if self.num_sms < 0:
            raise ValueError(f"num_sms: {self.num_sms} is less than 0")
        _positive(self.timeout_s)

    @property
    def provides(self) -> frozenset[Capability]:
        """Graphs, where nobody waits."""
        return frozenset({Capability.GRAPH_SAFE}) if self.sizes == "bound" else frozenset()


@dataclass(frozen=True, slots=True)
class LowLatencyConfig:
    """The `[runner.dispatch]` table when `use = "deepep-low-latency"`."""

    capacity: int = 128
    """Most tokens of a rank in one dispatch; memory grows with it."""
    tokens: Literal["bfloat16", "float8"] = "bfloat16"
    """How tokens travel to experts; outputs travel back as bfloat16."""
    nvlink: bool = True
    """Over NVLink where there is one; off: over RDMA alone, so that a receive needs no multiprocessors."""
    timeout_s: float = 60.0
    """How long ranks wait for each other when they meet. Later the library waits for its own 100 s."""

    def __post_init__(self) -> None:
        if not 1 <= self.capacity <= MOST:
            raise ValueError(f"capacity: {self.capacity} is not between 1 and {MOST}, the most that its kernels count")
        _positive(self.timeout_s)


def _positive(seconds: float) -> None:
    if not seconds > 0:
        raise ValueError(f"timeout_s: {seconds:g} is not more than 0")
