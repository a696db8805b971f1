"""A Mooncake store on this machine for the comparison: a master, and a process whose memory is the store's."""

from __future__ import annotations

import importlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

START_S = 20.0
SEGMENT = """
import sys, time
from pathlib import Path
from stepwell_mooncake import MooncakeConfig
from stepwell_mooncake.client import connect
store = connect(MooncakeConfig(sys.argv[1], segment_gib=float(sys.argv[2]), checksum=sys.argv[3] == "1"), 0)
Path(sys.argv[4]).touch()
while True:
    time.sleep(60)
"""


@contextmanager
def mooncake(gib: float, *, checksum: bool) -> Iterator[str]:
    """`host:port` of a master with a segment of so many GiB in a process of its own; both end with the context."""
    folder = Path(tempfile.mkdtemp(prefix="compare-mooncake-"))
    client = importlib.import_module("mooncake")
    rpc, metrics = _free_port(), _free_port()
    where = ["--rpc_address=127.0.0.1", f"--rpc_port={rpc}", "--metrics_host=127.0.0.1", f"--metrics_port={metrics}"]
    marker = folder / "segment"
    owner = [sys.executable, "-c", SEGMENT, f"127.0.0.1:{rpc}", str(gib), str(int(checksum)), str(marker)]
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        program = str(Path(client.__path__[0]) / "mooncake_master")
        stack.enter_context(_running([program, *where], folder / "master.log", lambda: _answers(rpc)))
        stack.enter_context(_running(owner, folder / "segment.log", marker.exists))
        yield f"127.0.0.1:{rpc}"


@contextmanager
def _running(command: Sequence[str], log: Path, ready: Callable[[], bool]) -> Iterator[None]:
    with log.open("wb") as out:
        process = subprocess.Popen(list(command), stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)
    try:
        end = time.monotonic() + START_S
        while not ready():
            if process.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"{Path(command[0]).name} did not start: {log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.05)
        yield
    finally:
        process.kill()
        process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
