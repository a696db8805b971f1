"""Costly work done once for all processes of a user, and apart from those that serve."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from stepwell import ConfigError


class Report(Protocol):
    """Told what is being done, in a few words, and how far it has come where that is known."""

    def __call__(self, what: str, done: int = 0, total: int = 0) -> None: ...


def silent(what: str, done: int = 0, total: int = 0) -> None:
    """A report that nobody reads."""


def once(target: Path, make: Callable[[Path], None], report: Report) -> Path:
    """`target`, made where it is missing by `make(folder)`: it appears whole or not at all, by one process's work."""
    if target.is_dir():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _lock(target.with_name(target.name + ".lock"), report):
            if target.is_dir():
                return target
            with tempfile.TemporaryDirectory(dir=target.parent, prefix=".making-", ignore_cleanup_errors=True) as made:
                inside = Path(made) / "made"
                inside.mkdir()
                make(inside)
                inside.rename(target)
    except OSError as error:
        raise ConfigError(f"runner.model: {target} cannot be written ({error})") from error
    return target


@contextmanager
def _lock(path: Path, report: Report) -> Iterator[None]:
    """Held by one process at a time, and let go by the system when it dies."""
    try:
        import fcntl
    except ImportError:  # another process may do the same work; the first to finish wins
        yield
        return
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report("waiting for another process that prepares the same")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def run_apart(module: str, arguments: Sequence[Path], failure: str, report: Report) -> None:
    """Run a module of this package in a process of its own. Raises ConfigError: `failure`, and why.

    So its memory goes back when it ends, and this process need not import what it imports.
    """
    run([sys.executable, "-m", f"{__package__}.{module}", *map(str, arguments)], failure, report)


def run(command: Sequence[str], failure: str, report: Report, what: str = "") -> None:
    """Run a command that may print lines `Progress DONE of TOTAL`. Raises ConfigError: `failure`, and why."""
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True, errors="replace"
        )
        try:
            assert process.stdout is not None
            for line in process.stdout:
                words = line.split()
                if what and words[:1] == ["Progress"] and len(words) == 4:
                    report(what, int(words[1]), int(words[3]))
            code = process.wait()
        finally:
            process.kill()
            process.wait()
            process.stdout and process.stdout.close()
        if code:
            errors.seek(0)
            lines = [line.strip() for line in errors.read().splitlines() if line.strip()]
            raise ConfigError(f"{failure} ({lines[-1] if lines else f'exit status {code}'})")


def room(folder: Path, nbytes: int, what: str) -> None:
    """ConfigError where a disk is too full for what comes."""
    free = shutil.disk_usage(folder).free
    if free < nbytes:
        raise ConfigError(
            f"runner.model: {what} takes {nbytes / 2**20:.0f} MiB and {folder} has {free / 2**20:.0f} MiB left"
        )
