"""`stepwell doctor --conform NAME`: a plugin's offer under the conformance kit, with no test file.

The kit comes with the distribution stepwell-testkit, and runs in a process apart: what it tests may crash or hang.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO, TextIO

import click

from stepwell.cli.probe import ending
from stepwell.config import Config, environment
from stepwell.errors import ConfigError

KITS = "stepwell_testkit"
STUCK_S = 180.0
"""How long one test may say nothing; the kits bound what they wait for, a hung native call may not."""
LINE = 160


@dataclass
class Outcome:
    """What a run of a kit came to."""

    offer: str
    kind: str = ""
    owner: str = ""
    capabilities: list[str] = field(default_factory=list)
    passed: list[str] = field(default_factory=list)
    failed: list[dict[str, str]] = field(default_factory=list)
    skipped: list[dict[str, str]] = field(default_factory=list)

    def hear(self, test: str, outcome: str, why: str) -> None:
        """Take the verdict on one test."""
        match outcome:
            case "passed":
                self.passed.append(test)
            case "failed":
                self.failed.append({"test": test, "why": why})
            case "skipped":
                self.skipped.append({"test": test, "why": why})


def conform(name: str, kind: str, path: str | None, sets: Sequence[str], as_json: bool, verbose: bool) -> None:
    """Run the kit, print what it found and exit: 0 it conforms, 1 it does not."""
    if find_spec(KITS) is None:
        raise ConfigError("--conform needs the conformance kits: pip install stepwell-testkit")
    Config.load(None if path is None else Path(path), environment(), sets)  # a wrong file is said at once
    outcome = run({"name": name, "kind": kind, "config": path, "sets": list(sets)}, verbose)
    show(outcome, as_json)
    sys.exit(1 if outcome.failed else 0)


def run(request: dict[str, Any], verbose: bool, stuck_s: float = STUCK_S) -> Outcome:
    """Run the kit in a child; ConfigError for what the user must mend."""
    outcome = Outcome(request["name"])
    under_way, ended = "", False
    with tempfile.TemporaryDirectory(prefix="stepwell-conform-") as folder:
        told, noise = Path(folder) / "told.jsonl", Path(folder) / "noise.txt"
        told.touch()
        request |= {"told": str(told), "folder": folder, "path": sys.path, "parent": os.getpid()}
        with noise.open("wb") as quiet, told.open() as tell, _child(request, None if verbose else quiet) as child:
            for line in _lines(tell, child, stuck_s):
                match line:
                    case {"error": str(sentence)}:
                        raise ConfigError(sentence)
                    case {"test": str(test), "outcome": "began"}:
                        under_way = test
                    case {"test": str(test), "outcome": str(what), "why": str(why)}:
                        outcome.hear(test, what, why)
                        under_way = ""
                    case {"ended": int(status)}:
                        ended = status in (0, 1)
                    case about:
                        outcome = replace(outcome, **about)
            if not ended:
                why = _ending(child.poll(), noise.read_text(errors="replace"), stuck_s)
                outcome.failed.append({"test": under_way or "the kit", "why": why})
    return outcome


def show(outcome: Outcome, as_json: bool) -> None:
    """Print it: each promise that does not hold and why, then the figures."""
    if as_json:
        click.echo(json.dumps({"conforms": not outcome.failed, **asdict(outcome)}, indent=2))
        return
    for failure in outcome.failed:
        why = failure["why"]
        click.echo(f"FAIL  {failure['test']}: {why if len(why) <= LINE else why[: LINE - 3] + '...'}")
    claims = ", ".join(outcome.capabilities) or "none"
    words = "does not conform" if outcome.failed else "conforms"
    click.echo(f"{outcome.kind} {outcome.offer!r} of {outcome.owner} {words}; claims tested: {claims}")
    counts = (len(outcome.passed), "passed"), (len(outcome.failed), "failed"), (len(outcome.skipped), "not asked for")
    click.echo(", ".join(f"{count} {what}" for count, what in counts))


@contextmanager
def _child(request: dict[str, Any], noise: BinaryIO | None) -> Iterator[subprocess.Popen[bytes]]:
    """The child, with all that it started gone at the end. What it prints goes to stderr or into `noise`."""
    child = subprocess.Popen(
        [sys.executable, "-m", "stepwell.cli.conformed"],
        stdin=subprocess.PIPE,
        stdout=noise or 2,  # stdout is for the answer
        stderr=noise,
        start_new_session=True,
    )
    try:
        assert child.stdin is not None
        with suppress(BrokenPipeError), child.stdin as pipe:
            pipe.write(json.dumps(request).encode())
        yield child
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _lines(told: TextIO, child: subprocess.Popen[bytes], stuck_s: float) -> Iterator[dict[str, Any]]:
    """What the child tells, until it has ended or has told nothing for too long."""
    part, last = "", time.monotonic()
    while time.monotonic() - last < stuck_s:
        over = child.poll() is not None
        part += told.read()
        *whole, part = part.split("\n")
        for line in whole:
            last = time.monotonic()
            yield json.loads(line)
        if over:
            return
        if not whole:
            time.sleep(0.05)


def _ending(status: int | None, noise: str, stuck_s: float) -> str:
    return f"it hung: nothing happened for {stuck_s:g} s" if status is None else ending(status, noise)
