"""The `[storage]` tables of the four offers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from stepwell.coerce import Secret


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderConfig:
    """A folder of pages: what `nixl` and `nixl-gds` have in common."""

    path: Path
    """The folder; made where it is missing. Several processes may share it."""
    gib: float = 10.0
    """Most that the folder may take, in GiB; beyond it the oldest pages leave."""
    ttl_h: float = 0.0
    """Hours after which a page counts as missing; 0: never."""
    transfers: int = 4
    """NIXL transfers that one batch is cut into, all of them in flight at once."""
    segment_mib: float = 256.0
    """Size of a segment file; between a 256th and a 16th of the limit, whatever is asked."""
    min_free_gib: float = 1.0
    """Room on the filesystem that is left to others, though never more than a twentieth of it."""

    def __post_init__(self) -> None:
        for name in ("gib", "segment_mib"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}: must be more than 0")
        for name in ("ttl_h", "min_free_gib"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}: must not be less than 0")
        if not 1 <= self.transfers <= 64:
            raise ValueError("transfers: must be 1 to 64")


@dataclass(frozen=True, slots=True, kw_only=True)
class NixlConfig(FolderConfig):
    """`use = "nixl"`: NIXL's POSIX backend."""

    engine: Literal["aio", "uring"] = "aio"
    """How NIXL asks the kernel: Linux AIO or io_uring."""
    direct: bool | Literal["auto"] = "auto"
    """Past the page cache (O_DIRECT): `auto` where the filesystem can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GdsConfig(FolderConfig):
    """`use = "nixl-gds"`: NIXL's GPUDirect Storage backends."""

    backend: Literal["GDS_MT", "GDS"] = "GDS_MT"
    """The one with threads, or the one with batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjConfig:
    """`use = "nixl-obj"`: a bucket of S3, or of what speaks S3, through NIXL's OBJ backend."""

    bucket: str
    """It must be there; objects that are not ours are left alone."""
    prefix: str = "stepwell/"
    """What the names of our objects begin with."""
    endpoint: str = ""
    """URL of the server, such as `http://127.0.0.1:9000`; empty: AWS, in `region`."""
    region: str = "us-east-1"
    access_key: Secret | None = None
    """Unset, as `secret_key`: what the AWS libraries find by themselves."""
    secret_key: Secret | None = None
    """By reference: `{ env = "NAME" }`."""
    virtual_addressing: bool = False
    """The bucket as a part of the host's name instead of the path."""
    ca_bundle: str = ""
    """A file of certificates to trust instead of the system's."""
    threads: int = 4
    """Requests of one batch at once."""
    timeout_s: float = 1.0
    """How long the server may take to answer a knock."""

    def __post_init__(self) -> None:
        if not self.bucket:
            raise ValueError("bucket: name one")
        if self.endpoint and urlsplit(self.endpoint).scheme not in ("http", "https"):
            raise ValueError("endpoint: must be a URL such as http://127.0.0.1:9000")
        if bool(self.access_key) != bool(self.secret_key):
            raise ValueError("access_key and secret_key: give both or neither")
        if not 1 <= self.threads <= 64:
            raise ValueError("threads: must be 1 to 64")
        if self.timeout_s <= 0:
            raise ValueError("timeout_s: must be more than 0")

    @property
    def secure(self) -> bool:
        """Whether the server speaks TLS."""
        return not self.endpoint.startswith("http://")

    @property
    def address(self) -> tuple[str, int]:
        """Where the server listens."""
        url = urlsplit(self.endpoint or f"https://s3.{self.region}.amazonaws.com")
        return url.hostname or "", url.port or (443 if url.scheme == "https" else 80)


@dataclass(frozen=True, slots=True, kw_only=True)
class UcxConfig:
    """`use = "nixl-ucx"`: the memory of a peer, started by `stepwell nixl peer`, through NIXL's UCX backend."""

    peer: str
    """`HOST:PORT` where the peer listens."""
    token: Secret | None = None
    """What the peer was started with, by reference: `{ env = "NAME" }`."""
    devices: str = ""
    """Network devices that UCX may use, such as `mlx5_0:1`; empty: `lo` for a peer on this machine, else all."""
    transfers: int = 4
    """NIXL transfers that one batch is cut into, all of them in flight at once."""
    timeout_s: float = 2.0
    """How long the peer may take to answer a question."""

    def __post_init__(self) -> None:
        host, _, port = self.peer.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise ValueError("peer: must be HOST:PORT")
        if not 1 <= self.transfers <= 64:
            raise ValueError("transfers: must be 1 to 64")
        if self.timeout_s <= 0:
            raise ValueError("timeout_s: must be more than 0")

    @property
    def address(self) -> tuple[str, int]:
        """Where the peer listens."""
        host, _, port = self.peer.rpartition(":")
        return host.strip("[]"), int(port)


def devices_for(host: str, asked: str) -> str:
    """Network devices for UCX, which would open a port on every one: only the loopback's where no other is needed."""
    return asked or ("lo" if host in ("localhost", "::1") or host.startswith("127.") else "")
