"""AIBrix's connectors, opened; made here without its environment variables where that is possible.

Only the connectors are used, not its cache manager: that one pins host memory whatever the device, which a machine
without CUDA cannot, and it would be a second index beside ours.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile

import rocksdict
from aibrix_kvcache.l2.connectors import Connector, ConnectorConfig
from aibrix_kvcache.l2.connectors.rocksdb import RocksDBConnector
from aibrix_kvcache.l2.connectors.shfs import SHFSConnector
from aibrix_kvcache.memory import MemoryRegion
from aibrix_kvcache.status import Status, StatusCodes

from stepwell import ConfigError, StoredPage
from stepwell_aibrix.config import AibrixConfig

PREFIX = b"stepwell/"
"""What tells our keys from those of others in the same store."""
SCAN_BATCH = 256


class Region(MemoryRegion):
    """A page in the arena, which is not the connector's to free."""

    def destroy_unsafe(self) -> None:
        pass

    def fill(self, data: bytes) -> None:
        if len(data) != self.length:
            raise ValueError(f"the page has {len(data)} bytes, not {self.length}")
        memoryview(self.to_tensor().numpy())[:] = data


class SafeSHFS(SHFSConnector):
    """Files published by renaming names of their own, and gone whoever removes them first.

    The connector's own put names its temporary file after the key alone, so that two writers of one key write into
    each other's file and can publish a mix of both. Its own get and delete fail where another's delete was quicker.
    """

    def _get(self, key: bytes, mr: MemoryRegion) -> Status[None]:
        place = mr.to_tensor().numpy()
        try:
            with self._key_to_filepath(key).open("rb", buffering=0) as file:
                size = os.fstat(file.fileno()).st_size
                if size != len(place):
                    return Status(StatusCodes.ERROR, f"the page has {size} bytes, not {len(place)}")
                got = 0
                while got < size and (more := file.readinto(memoryview(place)[got:])):
                    got += more
        except FileNotFoundError:
            return Status(StatusCodes.NOT_FOUND)
        except OSError as error:
            return Status(StatusCodes.ERROR, error)
        return Status.ok() if got == size else Status(StatusCodes.ERROR, f"only {got} of {size} bytes came")

    def _put(self, key: bytes, mr: MemoryRegion) -> Status[None]:
        path = self._key_to_filepath(key)
        part = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}.part")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with part.open("wb") as file:
                file.write(mr.tobytes())
            part.replace(path)
        except OSError as error:
            with suppress(OSError):
                part.unlink(missing_ok=True)
            return Status(StatusCodes.ERROR, error)
        return Status.ok()

    def _delete(self, key: bytes) -> Status[None]:
        self._key_to_filepath(key).unlink(missing_ok=True)
        return Status.ok()


def connect(config: AibrixConfig, executor: Executor, *, safe: bool = True) -> Connector:
    """The connector, open. ConfigError where it cannot be; `safe` False: exactly as AIBrix has it."""
    try:
        if config.path is not None and config.path.exists() and not config.path.is_dir():
            raise NotADirectoryError("it is no folder")
        if config.connector == "shfs" and config.path is not None:  # the connector itself finds out with each page
            config.path.mkdir(parents=True, exist_ok=True)
            TemporaryFile(dir=config.path).close()
        connector = _made(config, executor, safe)
        status = connector.open()
    except Exception as error:
        raise _refused(config, str(error) or type(error).__name__) from error
    if not status.is_ok():
        raise _refused(config, str(status.value))
    return connector


def reopen(connector: RocksDBConnector) -> bool:
    """Close and open a database; whether it is open then.

    After an error of its log RocksDB writes nothing more, whatever becomes of the disk; and without room for its log it
    does not open either.
    """
    connector.close()
    connector.store = None  # closing after such an error fails, and would leave the old one in place
    return bool(connector.open().is_ok())


def pages(config: AibrixConfig, connector: Connector) -> Iterator[list[StoredPage]]:
    """What it holds of ours, in batches."""
    if isinstance(connector, RocksDBConnector):
        yield from _batches(_in_database(connector))
    elif isinstance(connector, SHFSConnector):
        yield from _batches(_in_folder(Path(connector.root_path)))
    else:
        raise NotImplementedError(f"AIBrix's {config.connector} connector cannot list its pages")


def _made(config: AibrixConfig, executor: Executor, safe: bool) -> Connector:
    if config.connector == "rocksdb":
        return RocksDBConnector(str(config.path), _options(), _access(config), executor)
    if config.connector == "shfs":
        return (SafeSHFS if safe else SHFSConnector)(str(config.path), executor)
    name = config.connector.upper()
    return Connector.create(ConnectorConfig(name, config.namespace, "0", executor))


def _options() -> rocksdict.Options:
    """As AIBrix sets it up: keys and values are bytes, and pages do not compress."""
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(64 << 20)
    options.set_target_file_size_base(64 << 20)
    options.set_max_write_buffer_number(3)
    options.set_max_background_jobs(8)
    options.set_max_total_wal_size(128 << 20)
    options.set_compression_type(rocksdict.DBCompressionType.none())
    return options


def _access(config: AibrixConfig) -> rocksdict.AccessType:
    return rocksdict.AccessType.read_write().with_ttl(max(1, round(config.ttl_h * 3600)))


def _refused(config: AibrixConfig, why: str) -> ConfigError:
    short = why.splitlines()[0][:300]
    if "lock" in short.lower():
        return ConfigError(f"storage.path: {config.path} is open in another process, and RocksDB allows one: {short}")
    place = f"{config.path} cannot be opened" if config.path else f"the {config.connector} connector cannot be opened"
    return ConfigError(f"storage.connector = {config.connector!r}: {place}: {short}")


def _in_database(connector: RocksDBConnector) -> Iterator[StoredPage]:
    """RocksDB tells the size of a value only with the value."""
    for key, value in connector.store.items(from_key=PREFIX):
        if not key.startswith(PREFIX):
            return
        yield StoredPage(key[len(PREFIX) :], len(value))


def _in_folder(root: Path) -> Iterator[StoredPage]:
    head = PREFIX.hex()
    for folder, _, names in os.walk(root):
        for name in names:
            if not name.startswith(head) or "." in name:
                continue
            try:
                key = bytes.fromhex(name[len(head) :])
                yield StoredPage(key, (Path(folder) / name).stat().st_size)
            except (ValueError, FileNotFoundError):  # not a page, or gone since
                continue


def _batches(found: Iterator[StoredPage]) -> Iterator[list[StoredPage]]:
    batch: list[StoredPage] = []
    for page in found:
        batch.append(page)
        if len(batch) == SCAN_BATCH:
            yield batch
            batch = []
    if batch:
        yield batch
