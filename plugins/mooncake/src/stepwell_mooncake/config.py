"""The `[storage]` table when `use = "mooncake"`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stepwell import Capability
from stepwell.settings import above_zero, at_least

GIB = 1 << 30
MIB = 1 << 20
LEAST_SEGMENT = 16 * MIB
METRICS_PORT = 9003
"""Where a master serves its admin pages unless it is told otherwise."""


@dataclass(frozen=True, slots=True)
class MooncakeConfig:
    """Which master, how its segments are reached, what this process adds to them, and how pages are kept."""

    master: str
    """`host:port` of the master."""
    metadata: str = "P2PHANDSHAKE"
    """Where clients find each other: `P2PHANDSHAKE` needs no server; else the address of a metadata server."""
    metrics: str = ""
    """`host:port` of the master's admin pages, for listing pages; unset: the master's host, port 9003."""
    hostname: str = "127.0.0.1"
    """Under which other clients reach this one; they have to where it has a segment."""
    protocol: Literal["tcp", "rdma"] = "tcp"
    """How pages travel."""
    device: str = ""
    """RDMA devices, such as `mlx5_0,mlx5_1`."""
    segment_gib: float = 0.0
    """Memory that this process adds to the store, per rank; 0: it only uses the segments of others."""
    local_buffer_mib: float = 16.0
    """Memory of the client for itself."""
    replicas: int = 1
    """Copies of a page, each in another segment."""
    pin: Literal["none", "soft", "hard"] = "none"
    """`soft`: pages leave after all others; `hard`: never, so the store fills up and then takes no more."""
    soft_pin_ttl_s: float = 0.0
    """How long a soft pin lasts; 0: as long as the master says."""
    offload: Path | None = None
    """A folder to which this process's segment is offloaded. The master needs --enable_offload."""
    offload_gib: float = 100.0
    """Most that this folder takes."""
    offload_format: Literal["file_per_key", "bucket"] = "file_per_key"
    """A file a page, or many pages in a file."""
    rpc_timeout_s: float = 2.0
    """A master that says nothing for so long counts as gone."""
    transfer_timeout_s: float = 3.0
    """A segment's process that moves nothing for so long counts as gone; tcp waits twice."""
    space_retries: int = 10
    """How often a page is tried again for which there was no room. Eviction runs beside, so there may soon be some."""
    space_pause_s: float = 0.02
    """Before each of these."""
    tenant: str = "default"
    """Whose pages these are, for a master that tells tenants apart."""
    prefix: str = "stepwell/"
    """Stands before the name of each page; what has another name is left alone."""
    checksum: bool = False
    """Let the client keep a checksum of each page and compare it on each read, at three to five times the cost."""

    def __post_init__(self) -> None:
        _host_port("master", self.master)
        if self.metrics:
            _host_port("metrics", self.metrics)
        if not self.prefix or not self.prefix.isprintable():
            raise ValueError("prefix: must be printable and not empty, or pages could not be told from other objects")
        at_least("segment_gib", self.segment_gib, 0)
        if 0 < self.segment_gib * GIB < LEAST_SEGMENT:
            raise ValueError(
                f"segment_gib: a segment has at least {LEAST_SEGMENT // MIB} MiB ({LEAST_SEGMENT / GIB:g})"
            )
        if self.offload is not None and not self.segment_gib:
            raise ValueError("offload: is for the segment of this process; set segment_gib too")
        at_least("soft_pin_ttl_s", self.soft_pin_ttl_s, 0)
        if self.soft_pin_ttl_s and self.pin != "soft":
            raise ValueError('soft_pin_ttl_s: is for pin = "soft"')
        at_least("replicas", self.replicas, 1)
        at_least("space_retries", self.space_retries, 0)
        for name in ("local_buffer_mib", "offload_gib", "rpc_timeout_s", "transfer_timeout_s"):
            above_zero(name, getattr(self, name))
        if not 0 <= self.space_retries * self.space_pause_s <= 2:
            raise ValueError("space_pause_s: pauses add up to more than 2 s; take a smaller one or less space_retries")

    @property
    def provides(self) -> frozenset[Capability]:
        """What it can do with these settings, besides what the offer declares."""
        return frozenset({Capability.CHECKS}) if self.checksum else frozenset()

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the master."""
        return _host_port("master", self.master)

    @property
    def admin(self) -> tuple[str, int]:
        """Host and port of its admin pages."""
        return _host_port("metrics", self.metrics) if self.metrics else (self.address[0], METRICS_PORT)


def _host_port(name: str, text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or "/" in text or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"{name}: {text!r} is no address; write it as host:port")
    return host.strip("[]"), int(port)
