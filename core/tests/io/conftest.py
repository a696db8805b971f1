"""A storage that goes wrong when asked to, installed as a plugin so that another process finds it, too."""

from __future__ import annotations

import importlib.metadata
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stepwell.abc.storage import Storage
from stepwell.config import Config
from stepwell.engine.making import Place, make_storage
from stepwell.plugins import Registry, load
from stepwell.settings import TierSettings


class Wild:
    """The plugin, its folder of pages, and what it is told to do wrong."""

    def __init__(self, folder: Path, registry: Registry) -> None:
        self.folder, self.registry = folder, registry
        self.made: list[Storage] = []

    def table(self, use: str = "wild", **settings: object) -> dict[str, object]:
        """The `[storage]` table."""
        return {"use": use, "path": str(self.folder), **settings}

    def make(self, use: str = "wild", *, shared: bool = True, limit_s: float = 30.0, **settings: object) -> Storage:
        """A storage as an engine makes it; `limit_s`: after which a call ends its process."""
        own = settings.pop("own_process", "auto")
        table = settings.pop("table", None) or self.table(use, **settings)
        config = Config.load(None, {}, extra={"storage": table})
        choice = config.choose("storage", "storage", self.registry)
        tiers = TierSettings(own_process=own, timeout_s=limit_s / 3)
        place = Place(choice.offer.name, "cpu", lambda: self.folder)
        self.made.append(make_storage(choice, place, tiers, shared=shared))
        return self.made[-1]

    def fault(self, text: str = "") -> None:
        """From now on: a fault, and the calls that it is for (none named: all)."""
        temporary = self.folder / "fault.new"
        temporary.write_text(text)
        temporary.rename(self.folder / "fault")

    def pid(self) -> int:
        """Of the process that made the storage last."""
        return int((self.folder / "pid").read_text())


@pytest.fixture
def wild(tmp_path: Path, fake_dist: Callable[..., Path]) -> Iterator[Wild]:
    source = Path(__file__).with_name("wild.py").read_text()
    path = fake_dist("stepwell-wild", {"stepwell_wild": source}, {"stepwell.v1": {"wild": "stepwell_wild"}})
    registry = load(distributions=importlib.metadata.distributions(path=[str(path)]))
    folder = tmp_path / "pages"
    folder.mkdir()
    one = Wild(folder, registry)
    yield one
    one.fault()
    for storage in one.made:
        storage.close()


def wait_until(condition: Callable[[], bool], within_s: float = 40.0) -> None:
    """AssertionError where it does not come true."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.01)


def running(pid: int) -> bool:
    """Whether a process is there, and no zombie."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False
