"""A folder that looks like a 3FS mount, under the library's own Python where that can be had."""

import os
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

from stepwell_testkit import KitContext
from stepwell_threefs import ThreefsConfig
from stepwell_threefs.store import ThreefsStorage

DOUBLE = Path(__file__).parent / "double"
LIBRARY = "hf3fs-py-usrbio==1.2.9"
Open = Callable[..., ThreefsStorage]


@pytest.fixture(scope="session")
def library(request: pytest.FixtureRequest) -> Path | None:
    """A folder with the library's own `hf3fs_fuse`, whose extension nobody can build here; None where it is not got."""
    assert request.config.cache is not None
    folder = Path(request.config.cache.mkdir("stepwell-3fs"))
    if not (folder / "hf3fs_fuse" / "io.py").exists():
        try:
            _download(folder)
        except (OSError, subprocess.SubprocessError, tarfile.TarError, KeyError):
            return None
    return folder


def _download(folder: Path) -> None:
    """Its setup asks git for a revision even to say its name, so there must be one."""
    repository = folder / "empty"
    who = {f"GIT_{one}_{what}": "x@localhost" for one in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    env = {**os.environ, **who, "GIT_DIR": str(repository / ".git")}
    for command in (["init", "-q", str(repository)], ["commit", "-q", "--allow-empty", "-m", "empty"]):
        subprocess.run(["git", *command], env=env, cwd=folder, check=True, capture_output=True, timeout=30)
    pip = [sys.executable, "-m", "pip", "download", "-q", LIBRARY, "--no-binary", ":all:", "--no-deps"]
    subprocess.run(pip, env=env, cwd=folder, check=True, capture_output=True, timeout=120)
    [archive] = folder.glob("hf3fs*.tar.gz")
    with tarfile.open(archive) as tar:
        for name in ("__init__.py", "io.py"):
            member = tar.extractfile(f"{archive.name.removesuffix('.tar.gz')}/hf3fs_fuse/{name}")
            assert member is not None
            (folder / "hf3fs_fuse").mkdir(exist_ok=True)
            (folder / "hf3fs_fuse" / name).write_bytes(member.read())


@pytest.fixture(params=["library", "double"])
def mount(request: pytest.FixtureRequest, tmp_path: Path, library: Path | None) -> Iterator[Path]:
    """The mount, with USRBIO there: under the library's own Python, and under what stands in for it."""
    if request.param == "library" and library is None:
        pytest.skip(f"{LIBRARY} cannot be downloaded")
    with _mounted(tmp_path, library if request.param == "library" else None) as place:
        yield place


@pytest.fixture
def best_mount(tmp_path: Path, library: Path | None) -> Iterator[Path]:
    """The mount under the library's own Python where that can be had."""
    with _mounted(tmp_path, library) as place:
        yield place


@pytest.fixture
def double_mount(tmp_path: Path) -> Iterator[Path]:
    """The mount under what stands in for the library's Python."""
    with _mounted(tmp_path, None) as place:
        yield place


@contextmanager
def _mounted(folder: Path, library: Path | None) -> Iterator[Path]:
    place = folder / "mount"
    (place / "3fs-virt" / "iovs").mkdir(parents=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(DOUBLE))
        if library is not None:
            patch.syspath_prepend(str(library))
        _unload()
        _extension().control.mounts.append(str(place))
        yield place
        _unload()


def _unload() -> None:
    for name in ("hf3fs_py_usrbio", "hf3fs_fuse", "hf3fs_fuse.io"):
        sys.modules.pop(name, None)


def _extension() -> ModuleType:
    import hf3fs_py_usrbio

    return hf3fs_py_usrbio  # type: ignore[no-any-return]


@pytest.fixture
def extension(mount: Path) -> Iterator[ModuleType]:
    """The double of the extension, to be led astray."""
    module = _extension()
    yield module
    module.control.held.clear()


@pytest.fixture
def opened(context: KitContext) -> Iterator[Open]:
    """Opens stores; they are closed with the test."""
    stores: list[ThreefsStorage] = []

    def make(path: Path, **settings: object) -> ThreefsStorage:
        config = ThreefsConfig(path, **({"gib": 1 / 16} | settings))  # type: ignore[arg-type]
        stores.append(ThreefsStorage(config, context))
        return stores[-1]

    yield make
    for store in stores:
        store.close()
