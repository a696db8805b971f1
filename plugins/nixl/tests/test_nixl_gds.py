"""`nixl-gds` where there is no GPU: it says so, and its store is the kit's with POSIX in the place of GDS."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from stepwell import PluginError, Storage
from stepwell_nixl import FOLDER, client, gds, lanes, make_gds
from stepwell_nixl.config import GdsConfig
from stepwell_testkit import KitContext, StorageKit


def test_without_a_gpu_it_says_what_is_missing_and_makes_nothing(tmp_path: Path) -> None:
    assert "NVIDIA GPU" in (gds.missing(tmp_path) or "")


def test_without_a_driver_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nvidia0").touch()
    monkeypatch.setattr(gds, "_loads", lambda library: library == gds.CUFILE)
    assert gds.DRIVER in (gds.missing(tmp_path) or "")
    monkeypatch.setattr(gds, "_loads", lambda library: library == gds.DRIVER)
    assert gds.CUFILE in (gds.missing(tmp_path) or "")
    monkeypatch.setattr(gds, "_loads", lambda library: True)
    assert gds.missing(tmp_path) is None


def test_making_it_without_what_it_needs_never_asks_nixl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gds, "missing", lambda: "it is not here")
    monkeypatch.setattr(lanes, "make_agent", lambda *_: pytest.fail("NIXL was asked"))
    with pytest.raises(PluginError, match="nixl-gds"):
        make_gds(GdsConfig(path=tmp_path), KitContext(tmp_path))


class TestGds(StorageKit):
    provides = FOLDER
    limit_bytes = 24 << 20

    @pytest.fixture(autouse=True)
    def double(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """POSIX under the name of GDS: the calls, the files and the registrations are the same."""

        def make(backend: str, params: Mapping[str, str], setting: str) -> client.Agent:
            assert (backend, dict(params)) == ("GDS_MT", {})
            return client.make_agent("POSIX", {}, setting)

        monkeypatch.setattr(gds, "missing", lambda: None)
        monkeypatch.setattr(lanes, "make_agent", make)
        yield

    @pytest.fixture
    def reopen(self, tmp_path: Path, context: KitContext) -> Callable[[], Storage]:
        config = GdsConfig(path=tmp_path / "pages", gib=24 / 1024)
        return lambda: make_gds(config, context)

    @pytest.fixture
    def storage(self, reopen: Callable[[], Storage]) -> Iterator[Storage]:
        storage = reopen()
        yield storage
        storage.close()
