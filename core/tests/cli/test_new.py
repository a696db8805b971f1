"""Each kind of new plugin loads, and passes its own tests as written."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepwell import __version__
from stepwell.cli.new import KINDS, plain, written
from stepwell.errors import ConfigError
from stepwell.plugins import Registry, load

from .conftest import Shell


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def folder(shell: Shell, kind: str, tmp_path: Path) -> Path:
    ran = shell.run("new", kind, "my-piece")
    assert ran.code == 0
    assert ran.out.count("wrote ") == 4
    return tmp_path / "stepwell-my-piece"


@pytest.fixture
def registry(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    """As pip would install it, from what its pyproject says."""
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    info = folder / "src" / "my_piece.dist-info"
    info.mkdir()
    needs = "".join(f"Requires-Dist: {need}\n" for need in project["dependencies"])
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0.1.0\n{needs}")
    points = project["entry-points"]["stepwell.v1"]
    (info / "entry_points.txt").write_text("[stepwell.v1]\n" + "".join(f"{k} = {v}\n" for k, v in points.items()))
    monkeypatch.syspath_prepend(str(folder / "src"))
    yield load(distributions=importlib.metadata.distributions(path=[str(folder / "src")]))
    sys.modules.pop("stepwell_my_piece", None)


def test_a_new_plugin_loads(registry: Registry, kind: str) -> None:
    record = registry.record("my-piece")
    assert record is not None and record.state == "ok", record
    section = KINDS[kind][0]
    assert record.offers == ((f"{section}:my-piece",) if section else ())
    commands, failed = registry.commands()
    assert failed == []
    assert [command.name for _, command in commands] == ([] if section else ["report"])


def test_a_new_plugin_passes_its_own_tests(folder: Path) -> None:
    path = os.pathsep.join([str(folder / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout


def test_it_is_of_cores_own_release(folder: Path) -> None:
    major, minor = __version__.split(".")[:2]
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    window = f">={major}.{minor},<{major}.{int(minor) + 1}"
    assert f"stepwell{window}" in project["dependencies"]
    assert project["optional-dependencies"]["test"] == ["pytest>=8", f"stepwell-testkit{window}"]


def test_nothing_is_left_to_fill_in(kind: str) -> None:
    files = written(kind, "piece")
    assert sorted(files) == ["README.md", "pyproject.toml", "src/stepwell_piece/__init__.py", "tests/test_piece.py"]
    for text in files.values():
        assert "$" not in text
        assert "TODO" not in text and "REPLACE" not in text


def test_it_overwrites_nothing(shell: Shell, tmp_path: Path) -> None:
    assert shell.run("new", "write", "x", "--into", "deep/folder").code == 0
    before = (tmp_path / "deep/folder/stepwell-x/README.md").read_text()
    again = shell.run("new", "storage", "x", "--into", "deep/folder")
    assert again.code == 2
    assert again.err.startswith("Error: deep/folder/stepwell-x exists; ")
    assert (tmp_path / "deep/folder/stepwell-x/README.md").read_text() == before


def test_a_folder_that_cannot_be_made_is_one_sentence(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ran = shell.run("new", "storage", "x", "--into", "file")
    assert ran.code == 2
    assert "cannot be written" in ran.err and "Traceback" not in ran.err


def test_a_name_that_is_installed_is_taken(shell: Shell) -> None:
    ran = shell.run("new", "storage", "testkit")
    assert ran.code == 2
    assert "stepwell-testkit is installed already" in ran.err


def test_names() -> None:
    assert plain("stepwell-my-store") == plain("my-store") == "my-store"
    for name in ("", "My", "1st", "a--b", "a_b", "a-", "a/b"):
        with pytest.raises(ConfigError, match="is no name for a plugin"):
            plain(name)


def test_an_unknown_kind_names_those_there_are(shell: Shell) -> None:
    ran = shell.run("new", "cache", "x")
    assert ran.code == 2
    for kind in KINDS:
        assert kind in ran.err
