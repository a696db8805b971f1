"""The command line, in this process or another, in a home of its own and with the plugins that a test installs."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from stepwell.cli import root


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


def runner() -> CliRunner:
    """One that keeps the two streams apart; click before 8.2 has to be told."""
    old = "mix_stderr" in inspect.signature(CliRunner).parameters
    return CliRunner(mix_stderr=False) if old else CliRunner()  # type: ignore[call-arg]


class Shell:
    """Runs `stepwell`; no plugin of this environment takes part unless a test installs it here."""

    def __init__(self, home: Path, fake_dist: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
        self._fake_dist = fake_dist
        self._env = {"HOME": str(home), "XDG_CONFIG_HOME": str(home), "XDG_CACHE_HOME": str(home)}
        self._names: list[str] = []
        self._paths: list[str] = []
        for name, value in self._env.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("STEPWELL_PLUGINS", "")
        self._patch = monkeypatch

    def install(self, name: str, source: str, *, distribution: str = "", **more: object) -> None:
        distribution = distribution or f"stepwell-{name}"
        module = distribution.replace("-", "_")
        self._paths.append(
            str(self._fake_dist(distribution, {module: source}, {"stepwell.v1": {name: module}}, **more))
        )
        self._names.append(name)
        self._patch.setenv("STEPWELL_PLUGINS", ",".join(self._names))

    def run(self, *arguments: str) -> Ran:
        """In this process."""
        result = runner().invoke(root, arguments)
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Ran(result.exit_code, result.stdout, result.stderr)

    def process(self, *arguments: str) -> Ran:
        """In a process of its own, as a user does."""
        with self.begin(*arguments) as process:
            try:
                out, err = process.communicate(timeout=120)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        return Ran(process.returncode, out, err)

    def begin(self, *arguments: str) -> subprocess.Popen[str]:
        """The same, under way."""
        path = os.pathsep.join([*self._paths, *([os.environ["PYTHONPATH"]] if "PYTHONPATH" in os.environ else [])])
        return subprocess.Popen(
            [sys.executable, "-m", "stepwell", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )


@pytest.fixture
def shell(tmp_path: Path, fake_dist: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.chdir(tmp_path)
    return Shell(tmp_path, fake_dist, monkeypatch)
