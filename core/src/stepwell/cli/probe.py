"""Looking at plugins from a safe distance: a child process imports them, for native code can hang or abort.

`python -m stepwell.cli.probe` reads a request from stdin and writes its answer to the file that the request names:
plugins may print what they like.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from stepwell.config import Config, environment
from stepwell.discover import discover
from stepwell.plugins import Registry, load
from stepwell.records import BROKEN, Record

TIMEOUT_S = 60.0
PROGRESS = re.compile(r"[\W_]*|[.sxXFEp]+\s*(\[ *\d+%\])?")
"""Output that says nothing: punctuation, and pytest's dots."""

Answer = dict[str, Any]
Judge = Callable[[Config, Registry, Answer], Answer]


class Died(Exception):
    """The child ended without an answer."""


def survey(judge: str, request: Answer, config: Config, timeout_s: float = TIMEOUT_S) -> tuple[list[Record], Answer]:
    """Load all plugins in a child and let `judge` (`module:function`) add to the answer.

    A plugin that takes the child down is found by loading each alone, and left out.
    """
    off = set(config.disabled)
    deadly: list[Record] = []
    try:
        answer = _ask(judge, request, off, config.only, timeout_s)
    except Died:
        deadly = _deadly(off, config.only, timeout_s)
        answer = _ask(judge, request, off | {record.name for record in deadly}, config.only, timeout_s)
    killed = {record.name: record for record in deadly}
    records = [Record(**{**one, "offers": tuple(one["offers"])}) for one in answer.pop("records")]
    return [killed.get(record.name, record) for record in records], answer


def _deadly(off: Collection[str], only: Collection[str] | None, timeout_s: float) -> list[Record]:
    found = []
    for entry in discover().found:
        if entry.core or {entry.name, entry.distribution} & set(off):
            continue
        if only is not None and not {entry.name, entry.distribution} & set(only):
            continue
        try:
            _ask("", {}, off, {entry.name}, timeout_s)
        except Died as why:
            found.append(entry.record(BROKEN, f"import {entry.module}: {why}"))
    return found


def _ask(judge: str, request: Answer, off: Collection[str], only: Collection[str] | None, timeout_s: float) -> Answer:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "answer.json"
        asked = {
            "judge": judge,
            "request": request,
            "disable": sorted(off),
            "only": None if only is None else sorted(only),
            "out": str(out),
            "path": sys.path,
        }
        try:
            done = subprocess.run(
                [sys.executable, "-m", "stepwell.cli.probe"],
                input=json.dumps(asked).encode(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise Died(f"it did not finish within {timeout_s:g} s") from None
        if not out.exists():
            raise Died(ending(done.returncode, done.stderr.decode(errors="replace")))
        answer: Answer = json.loads(out.read_text())
        return answer


def ending(status: int, noise: str) -> str:
    """How a child ended, with its last line of output where that says anything."""
    last = (noise.strip().splitlines() or [""])[-1]
    how = signal.Signals(-status).name if status < 0 else f"status {status}"
    return f"it ended the process with {how}" + ("" if PROGRESS.fullmatch(last) else f" ({last})")


def main() -> None:
    """Be the child."""
    asked = json.load(sys.stdin)
    sys.path[:] = asked["path"]
    registry = load(disable=asked["disable"], only=asked["only"])
    answer: Answer = {}
    if asked["judge"]:
        module, _, name = asked["judge"].partition(":")
        judge: Judge = getattr(__import__(module, fromlist=[name]), name)
        request = asked["request"]
        path = request.get("config")
        config = Config.load(None if path is None else Path(path), environment(), request.get("sets", ()))
        answer = judge(config, registry, request)
    answer["records"] = [asdict(replace(record)) for record in registry.records]
    Path(asked["out"]).write_text(json.dumps(answer))


if __name__ == "__main__":
    main()
