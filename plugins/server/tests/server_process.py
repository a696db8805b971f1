"""The real thing for tests: `stepwell serve` with the sim runner, and its processes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import openai

START_S = 60.0
SERVING = re.compile(r"serving .* at (http://\S+)/v1")
ADMIN = {"authorization": "Bearer root"}
BASE = ("runner.use=sim", "server.port=0", "server.admin_key=root", "cache.device_pages=256")


def until(what: Callable[[], object], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with suppress(httpx.TransportError):
            if what():
                return True
        time.sleep(0.02)
    return False


def command(*sets: str) -> list[str]:
    return [sys.executable, "-m", "stepwell", "serve", *(part for one in sets for part in ("--set", one))]


def environment(folder: Path, plugins: str = "stepwell-server") -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("STEPWELL_")}
    return kept | {"STEPWELL_PLUGINS": plugins, "XDG_CACHE_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}


def refused(folder: Path, *sets: str, plugins: str = "stepwell-server") -> tuple[int, str]:
    """Exit status and words of a server that must not start."""
    env = environment(folder, plugins)
    done = subprocess.run(command(*sets), env=env, capture_output=True, text=True, timeout=START_S)
    return done.returncode, done.stderr


@dataclass
class Server:
    """A server that runs, and what can be done to it."""

    process: subprocess.Popen[bytes]
    log: Path
    url: str

    @property
    def words(self) -> str:
        return self.log.read_text()

    def openai(self, **options: object) -> openai.OpenAI:
        return openai.OpenAI(
            **{"base_url": f"{self.url}/v1", "api_key": "none", "max_retries": 0, "timeout": 30, **options}
        )

    def get(self, path: str) -> httpx.Response:
        return httpx.get(f"{self.url}{path}", headers=ADMIN, timeout=5)

    def stats(self) -> dict[str, float]:
        return self.get("/admin/stats").json()

    def at_rest(self) -> bool:
        stats = self.stats()
        held = sum(value for name, value in stats.items() if re.match(r"device_pages_(held|limbo)", name))
        return stats["running"] == stats["waiting"] == held == 0

    def clean(self) -> bool:
        return httpx.post(f"{self.url}/admin/audit", headers=ADMIN, timeout=5).json() == {"clean": True}

    def healthy(self) -> bool:
        return self.get("/health").status_code == 200

    def pid(self, name: str) -> int:
        """Process id of the `engine` or the `front`."""
        module = {"engine": b"stepwell.process", "front": b"stepwell_server.front"}[name]
        for child in children(self.process.pid):
            if module in Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0"):
                return child
        raise AssertionError(f"no {name} runs")


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@contextmanager
def real(folder: Path, *sets: str, plugins: str = "stepwell-server") -> Iterator[Server]:
    """A server over `BASE` and more settings; no process of it is left behind."""
    log = folder / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(command(*BASE, *sets), env=environment(folder, plugins), stdout=out, stderr=out)
    try:
        found = until(
            lambda: re.search(r"serving .* at (http://\S+)/v1", log.read_text()) or process.poll() is not None, START_S
        )
        at = re.search(r"serving .* at (http://\S+)/v1", log.read_text())
        assert found, log.read_text()
        assert at, log.read_text()
        yield Server(process, log, at[1])
    finally:
        left = children(process.pid) if process.poll() is None else []
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in left)), "a child outlived its launcher"
