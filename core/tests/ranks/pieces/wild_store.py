"""A folder of pages that several processes share; on one rank it goes wrong in a way that a test chooses."""

import os
import random
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from stepwell.abc.storage import Storage
from stepwell.errors import ConfigError
from stepwell.types import DIGEST_BYTES, DONE, MISSING, TAG_BYTES, Failed, StoredPage


@dataclass(frozen=True)
class Wrong:
    """What happens on `rank`."""

    what: str = ""
    rank: int = 1
    after: int = 0
    """So many calls go well first."""


class WildStore(Storage):
    def __init__(self, folder, wrong, context):
        self.folder, self.rank = Path(folder), context.rank
        self.what, self.after = (wrong.what if wrong.rank == context.rank else ""), wrong.after
        self.draw = random.Random(3)
        self.calls, self.lock = 0, threading.Lock()
        if self.what == "make":
            raise ConfigError("storage.path = '/gone': there is no such folder")
        if self.what == "make badly":
            raise OSError("no cable")
        self.note("made", f"of {context.world}")

    def note(self, what, more=""):
        with (self.folder / f"notes.{self.rank}").open("a") as file:
            file.write(f"{what} {more}\n")

    def attach(self, arena):
        if self.what == "attach":
            raise OSError("no memory window")
        self.note("attached", f"{arena.nbytes} {os.getpid()}")

    def contains(self, keys):
        self.turn()
        return [(self.folder / key.hex()).exists() for key in keys]

    def read(self, keys, into):
        turn = self.turn()
        results = [self.one(key, view) for key, view in zip(keys, into.buffers(), strict=True)]
        return results[:-1] if self.what == "mix" and turn % 5 == 4 else results

    def one(self, key, view):
        if self.what == "mix" and self.draw.random() < 0.2:
            view[:] = bytes(len(view))
            return self.draw.choice((Failed("no such block"), MISSING, DONE))
        try:
            view[:] = (self.folder / key.hex()).read_bytes()
        except FileNotFoundError:
            return MISSING
        return DONE

    def write(self, keys, pages):
        turn = self.turn()
        for key, page in zip(keys, pages.buffers(), strict=True):
            there = self.folder / key.hex()
            half = self.folder / f"half.{self.rank}.{turn}"
            half.write_bytes(page)
            half.rename(there)
        if self.what == "mix" and turn % 5 == 1:
            return [Failed("no room")] * len(keys)
        return [DONE] * len(keys)

    def turn(self):
        with self.lock:
            self.calls += 1
            turn = self.calls - self.after
        if turn > 0:
            match self.what:
                case "raise":
                    raise OSError("no cable")
                case "die":
                    os.kill(os.getpid(), signal.SIGKILL)
                case "hang" if turn % 4 == 1:
                    time.sleep(0.4)
        return max(turn, 0)

    def delete(self, keys):
        for key in keys:
            (self.folder / key.hex()).unlink(missing_ok=True)

    def scan(self):
        size = 2 * (DIGEST_BYTES + TAG_BYTES)
        yield [
            StoredPage(bytes.fromhex(path.name), path.stat().st_size)
            for path in self.folder.iterdir()
            if len(path.name) == size
        ]

    def values(self):
        if self.what == "count":
            raise OSError("no cable")
        return {"wild_calls": float(self.calls)}

    def close(self):
        self.note("closed")


def make(folder, wrong, config, context):
    return WildStore(folder, wrong, context)
