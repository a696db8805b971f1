"""A dispatcher whose ranks are processes: each brings everything, through files in a folder, to all others."""

from __future__ import annotations

import pickle
import time
from pathlib import Path
from urllib.parse import urlparse

from kit_subjects.dispatch import Mesh, Queues
from stepwell import PeerLost


class Files(Queues):
    """Queues that are folders."""

    in_flight = 1

    def __init__(self, context) -> None:
        super().__init__(Mesh(context.world), context.rank)
        self.folder = Path(urlparse(context.meet).path)
        self.folder.mkdir(exist_ok=True)

    def send(self, to, number, message):
        part = self.folder / f"part-{self.rank}-{to}-{number}"
        part.write_bytes(pickle.dumps(message))
        part.rename(self.folder / f"{self.rank}-{to}-{number}")

    def receive(self, source, number):
        path, end = self.folder / f"{source}-{self.rank}-{number}", time.monotonic() + self.patience_s
        while not path.exists():
            if time.monotonic() > end:
                self.lost = True
                raise PeerLost(f"rank {source} is silent")
            time.sleep(0.001)
        return pickle.loads(path.read_bytes())


class WaitsForEver(Files):
    patience_s = 60.0


class Ends(Files):
    """A rank whose process ends."""

    def combine_finish(self, handle):
        if self.rank == 1:
            raise SystemExit
        return super().combine_finish(handle)
