"""A storage plugin that keeps pages in a folder, and does whatever wrong the file `fault` in that folder asks for."""

import ctypes
import logging
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from stepwell import (
    DONE,
    MISSING,
    Capability,
    ConfigError,
    Failed,
    Offer,
    Storage,
    StoredPage,
    hookimpl,
)
from stepwell.config import Secret

NONE = Secret("")


@dataclass(frozen=True)
class WildConfig:
    """Where pages are, and a password."""

    path: Path
    password: Secret = NONE


class WildStorage(Storage):
    """One file a page."""

    def __init__(self, config, context):
        self.folder, self.log = config.path, context.log
        self.arena = None
        self.act("make")
        (self.folder / "pid").write_text(str(os.getpid()))
        if config.password:
            (self.folder / "password").write_text(config.password)

    def act(self, call):
        """Go wrong in this call, if it is asked for: a fault's file holds its name and the calls it is for."""
        try:
            fault, *calls = (self.folder / "fault").read_text().split()
        except (OSError, ValueError):
            return
        if calls and call not in calls:
            return
        match fault:
            case "gil":
                ctypes.PyDLL(None).sleep(3)
            case "segv":
                ctypes.string_at(0)
            case "hang":
                threading.Event().wait()
            case "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
                time.sleep(3)  # another thread may take the signal, and this one run on until it is stopped too
            case "slow":
                time.sleep(0.5)
            case "raise":
                raise OSError("the cable fell out")
            case "config":
                raise ConfigError("storage.url: nobody answers at cache:1, start the server or name another")
            case "exit":
                sys.exit(3)
            case "leave":
                os._exit(7)
            case "log":
                self.log.warning("two\nlines")
                print("printed", flush=True)
                self.log.debug("not wanted")

    def attach(self, arena):
        self.act("attach")
        self.arena = arena
        text = f"{os.getpid()} {arena.name} {arena.fd} {arena.nbytes} {arena.slots(0)}"
        (self.folder / "attached").write_text(text)
        if arena.name:
            (self.folder / "named").write_bytes(Path("/dev/shm", arena.name).read_bytes()[:8])

    def contains(self, keys):
        self.act("contains")
        return [(self.folder / key.hex()).exists() for key in keys]

    def read(self, keys, into):
        self.act("read")
        return [self.read_one(key, view) for key, view in zip(keys, into.buffers(), strict=True)]

    def read_one(self, key, view):
        if key.startswith(b"bad"):
            return Failed(f"page {key[3:10].decode()} is bad")
        if key.startswith(b"odd"):
            return True
        try:
            view[:] = (self.folder / key.hex()).read_bytes()
        except FileNotFoundError:
            return MISSING
        return DONE

    def write(self, keys, pages):
        self.act("write")
        for key, view in zip(keys, pages.buffers(), strict=True):
            temporary = self.folder / f"{key.hex()}.{threading.get_ident()}"
            temporary.write_bytes(view)
            temporary.rename(self.folder / key.hex())
        return [DONE] * len(keys)

    def delete(self, keys):
        self.act("delete")
        for key in keys:
            (self.folder / key.hex()).unlink(missing_ok=True)

    def scan(self):
        self.act("scan")
        found = [path for path in self.folder.iterdir() if len(path.name) == 80]
        for path in found:
            yield [StoredPage(bytes.fromhex(path.name), path.stat().st_size)]

    def close(self):
        self.act("close")
        (self.folder / "closed").write_text(str(os.getpid()))


class Unlisted(WildStorage):
    """Cannot list its pages."""

    scan = Storage.scan


@hookimpl
def stepwell_storages():
    """One that asks for a process of its own, one that does not, and one that cannot travel."""
    logging.getLogger("stepwell.wild").debug("imported")
    apart = frozenset({Capability.APART})
    return [
        Offer("wild", WildStorage, WildConfig, provides=apart),
        Offer("tame", WildStorage, WildConfig),
        Offer("unlisted", Unlisted, WildConfig, provides=apart),
        Offer("nameless", lambda config, context: WildStorage(config, context), WildConfig, provides=apart),
        Offer("by-name", WildStorage, WildConfig, provides=apart | {Capability.NAMED_MEMORY}),
    ]
