"""A real Ray on this machine, with two replicas in it, as `stepwell deploy ray` brings it up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import httpx
import msgspec
import pytest

from stepwell_testkit.server import free_port, lacking

START_S = 90.0
PAGE, PAGES = 16, 160
"""Tokens a page, and pages of each replica."""
CONFIG = """
[runner]
use = "sim"
eos_every = 0
pace = 0.002

[cache]
page_size = {page}
device_pages = {pages}
host_pages = {pages}

[write]
use = "write_through"

[storage]
use = "file"
path = "{folder}/store"

[ray]
replicas = 2
cpus = 0.5

[server]
port = {port}
api_key = "well"
admin_key = "root"
"""
CLIENT = {"authorization": "Bearer well"}
ADMIN = {"authorization": "Bearer root"}


def need_ray() -> None:
    if find_spec("ray") is None or find_spec("fastapi") is None:
        lacking("ray[serve] is not installed")


def environment(folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("STEPWELL_")}
    plugins = "stepwell-ray,stepwell-server,stepwell-file"
    return kept | {"STEPWELL_PLUGINS": plugins, "XDG_CACHE_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "stepwell", "deploy", "ray", *words]


def until(what: Callable[[], object], seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if what():
            return True
        time.sleep(0.05)
    return False


@dataclass
class Deployed:
    """What runs, and what can be asked of it."""

    process: subprocess.Popen[bytes]
    url: str
    log: Path
    config: Path
    client: httpx.Client

    def complete(self, prompt: list[int], tokens: int = 4, **more: object) -> httpx.Response:
        body = {"model": "sim", "prompt": prompt, "max_tokens": tokens, **more}
        return self.client.post("/v1/completions", json=body, headers=CLIENT)

    def family(self) -> list[int]:
        """The command's process, and all that came of it."""
        return [self.process.pid, *family(self.process.pid)]

    def replicas(self) -> set[int]:
        """Process ids of the engines."""
        return {pid for pid in family(self.process.pid) if "ray::ServeReplica:stepwell:engine" in title(pid)}

    def stats(self) -> dict[str, dict[str, float]]:
        """Counters of each replica by its name."""
        return self.client.get("/admin/stats", headers=ADMIN).json()["groups"]


def family(pid: int) -> list[int]:
    found: list[int] = []
    waiting = [pid]
    while waiting:
        parent = waiting.pop()
        try:
            text = Path(f"/proc/{parent}/task/{parent}/children").read_text()
        except OSError:
            continue
        children = [int(child) for child in text.split()]
        found += children
        waiting += children
    return found


def title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


@contextmanager
def deployed(folder: Path) -> Iterator[Deployed]:
    port = free_port()
    config, out, log = folder / "ray.toml", folder / "out", folder / "log"
    config.write_text(CONFIG.format(page=PAGE, pages=PAGES, folder=folder, port=port))
    env = environment(folder)
    with out.open("wb") as said, log.open("wb") as told:
        process = subprocess.Popen(command(str(config), "--json"), env=env, stdout=said, stderr=told, cwd=folder)
    left: list[int] = []
    try:
        assert until(lambda: out.read_bytes().endswith(b"\n") or process.poll() is not None, START_S), log.read_text()
        assert process.poll() is None, log.read_text()
        url = msgspec.json.decode(out.read_bytes())["url"]
        assert url == f"http://127.0.0.1:{port}"
        with httpx.Client(base_url=url, timeout=30) as client:
            one = Deployed(process, url, log, config, client)
            assert until(lambda: client.get("/health/ready").status_code == 200, START_S), log.read_text()
            assert until(lambda: len(one.stats()) == 2), log.read_text()
            yield one
    finally:
        left = family(process.pid)
        process.send_signal(signal.SIGINT)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        gone = until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in left), 15)
        for pid in left:
            if not gone and title(pid):
                os.kill(pid, signal.SIGKILL)
    assert process.returncode == 0, log.read_text()
    assert gone, "a process outlived the command"


@pytest.fixture(scope="module")
def well(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    need_ray()
    with deployed(tmp_path_factory.mktemp("ray")) as one:
        yield one
