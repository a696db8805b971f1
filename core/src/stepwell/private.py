"""Folders for one process and its children, gone with it: at the latest whoever makes the next one removes them."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

PREFIX = "stepwell-"
OWNER = "owner"
"""A file that is locked for as long as the process lives to which the folder belongs."""


class PrivateFolder:
    """A folder that only this user can reach."""

    def __init__(self, what: str = "") -> None:
        """`what` is part of its name. Those of processes that are gone are removed."""
        sweep()
        self.path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{what}"))  # mode 0700
        new = self.path / f"{OWNER}.new"
        self._owner = new.open("wb")
        fcntl.flock(self._owner, fcntl.LOCK_EX)
        new.rename(self.path / OWNER)  # under that name it is locked from the first moment on

    def close(self) -> None:
        """Remove it, and those of children that could not."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._owner.close()
        sweep()


def sweep() -> None:
    """Remove the folders of this user's processes that are gone."""
    for owner in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{OWNER}"):
        with suppress(OSError), owner.open("rb") as file:  # in use, or another sweep's
            if os.fstat(file.fileno()).st_uid == os.getuid():
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(owner.parent, ignore_errors=True)
