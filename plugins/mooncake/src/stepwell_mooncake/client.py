"""The client library: what of it is used, the codes it answers, and how it is set up.

The client holds the interpreter's lock while it sets up and closes, so no thread of ours could keep time on it: the
start has bounds because somebody answers at the master's port before, and by what the environment tells the client.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast
from urllib.parse import urlsplit

from stepwell import ConfigError
from stepwell_mooncake.config import GIB, MIB, MooncakeConfig
from stepwell_mooncake.master import refusal
from stepwell_mooncake.wheel import why_not

START_S = 2.0
"""Most that a connection may take at the start."""
OFFLOAD_BUFFER = 64 * MIB
LOG_LEVEL = "ERROR"
"""Unless the environment has another. It is the highest: the client prints a line for each page that failed."""

OK = 0
NO_SPACE = -200
BAD_PARAMS = -600
NOT_READY = -703
NOT_FOUND = -704
EXISTS = -705
LEASED = -706
LEASE_EXPIRED = -707
WRONG_CHECKSUM = -801
NO_MASTER = -900
MASTER_SILENT = -901

MEANING = {
    -1: "internal error",
    -101: "no segment",
    NO_SPACE: "no space",
    BAD_PARAMS: "bad parameters",
    NOT_READY: "not written yet",
    NOT_FOUND: "not found",
    LEASED: "somebody reads it",
    LEASE_EXPIRED: "the read took longer than the master's lease",
    -800: "the transfer failed",
    WRONG_CHECKSUM: "the checksum differs",
    NO_MASTER: "the master does not answer",
    MASTER_SILENT: "the master does not answer in time",
}


class Client(Protocol):
    """What is used of `mooncake.store.MooncakeDistributedStore`. Each answers a code, or one for each key."""

    def register_buffer(self, buffer_ptr: int, size: int) -> int: ...
    def unregister_buffer(self, buffer_ptr: int) -> int: ...
    def batch_is_exist(self, keys: Sequence[str]) -> list[int]: ...
    def batch_get_into(self, keys: Sequence[str], buffer_ptrs: list[int], sizes: list[int]) -> list[int]: ...
    def batch_put_from(
        self, keys: Sequence[str], buffer_ptrs: list[int], sizes: list[int], config: object
    ) -> list[int]: ...
    def batch_get_into_multi_buffers(
        self, keys: Sequence[str], all_buffer_ptrs: list[list[int]], all_sizes: list[list[int]]
    ) -> list[int]: ...
    def batch_put_from_multi_buffers(
        self, keys: Sequence[str], all_buffer_ptrs: list[list[int]], all_sizes: list[list[int]], config: object
    ) -> list[int]: ...
    def get_size(self, key: str) -> int: ...
    def batch_remove(self, keys: Sequence[str], force: bool) -> list[int]: ...
    def close(self) -> int: ...


def meaning(code: int) -> str:
    """A code in words."""
    return f"{MEANING.get(code, 'failed')} ({code})"


def environment(config: MooncakeConfig) -> Mapping[str, str]:
    """What the client takes from the environment alone; some of it only once a process, at its first use.

    As it comes, the client waits 30 s for a frozen master, 60 s for a frozen segment, and 90 s at the start.
    """
    values = {
        "MC_STORE_CLIENT_SETUP_RETRIES": "1",
        "MC_RPC_TIMEOUT_MS": str(round(config.rpc_timeout_s * 1000)),
        "MC_TCP_PROGRESS_TIMEOUT_SEC": str(max(1, round(config.transfer_timeout_s))),
        "MC_TCP_STATUS_TIMEOUT_SEC": str(max(1, round(config.transfer_timeout_s))),
        "MOONCAKE_STORE_CHECKSUM": str(int(config.checksum)),
    }
    if config.protocol == "rdma":
        values["MC_SLICE_TIMEOUT"] = str(max(1, round(config.transfer_timeout_s)))
    if config.offload is not None:
        values |= {
            "MOONCAKE_OFFLOAD_STORAGE_BACKEND_DESCRIPTOR": f"{config.offload_format}_storage_backend",
            "MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES": str(round(config.offload_gib * GIB)),
            "MOONCAKE_OFFLOAD_HEARTBEAT_INTERVAL_SECONDS": "1",
            "MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES": str(OFFLOAD_BUFFER),
        }
    return values


def connect(config: MooncakeConfig, rank: int) -> Client:
    """A client that is set up. ConfigError, in a sentence and within seconds, where that cannot be."""
    _reach("master", config.master, config.address, "start mooncake_master there, or name another address")
    parts = urlsplit(config.metadata)
    if parts.hostname and parts.port:
        remedy = 'start it, or leave the setting out: "P2PHANDSHAKE" needs none'
        _reach("metadata", config.metadata, (parts.hostname, parts.port), remedy)
    folder = _folder(config.offload / f"rank-{rank}") if config.offload is not None else None
    os.environ.update(environment(config))
    os.environ.setdefault("MC_LOG_LEVEL", LOG_LEVEL)
    try:
        module = import_module("mooncake.store")
    except ImportError as error:
        raise ConfigError(f"storage.use: mooncake: {why_not(error)}") from None
    store = module.MooncakeDistributedStore()
    code: int = store.setup(
        config.hostname,
        config.metadata,
        round(config.segment_gib * GIB),
        round(config.local_buffer_mib * MIB),
        config.protocol,
        config.device,
        config.master,
        enable_ssd_offload=folder is not None,
        ssd_offload_path=str(folder or ""),
        tenant_id=config.tenant,
    )
    if code != OK:
        raise ConfigError(_no_setup(config, code))
    return cast(Client, store)


def placing(config: MooncakeConfig) -> object:
    """How pages are put: copies and pins (a `ReplicateConfig`)."""
    module = import_module("mooncake.store")
    how = module.ReplicateConfig()
    how.replica_num = config.replicas
    how.with_hard_pin = config.pin == "hard"
    if config.pin == "soft":
        how.soft_pin_action = module.SoftPinAction.ENABLE
        if config.soft_pin_ttl_s:
            how.soft_pin_ttl_ms = round(config.soft_pin_ttl_s * 1000)
    return cast(object, how)


def _reach(setting: str, text: str, address: tuple[str, int], remedy: str) -> None:
    why = refusal(address, START_S)
    if why is not None:
        raise ConfigError(f"storage.{setting}: nobody answers at {text} ({why}); {remedy}")


def _folder(path: Path) -> Path:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"storage.offload: {path}: {error.strerror}; name a folder that can be written") from None
    return path


def _no_setup(config: MooncakeConfig, code: int) -> str:
    others = [f"storage.hostname ({config.hostname})"]
    if config.protocol == "rdma":
        others.append(f"storage.device ({config.device or 'any'})")
    if config.segment_gib:
        others.append(f"storage.segment_gib ({config.segment_gib:g})")
    return (
        f"storage.master: Mooncake's client cannot be set up with {config.master}: {meaning(code)}; see that a"
        f" mooncake_master of the client's version serves there, and check {' and '.join(others)}; with"
        " MC_LOG_LEVEL=INFO in the environment the client says more"
    )
