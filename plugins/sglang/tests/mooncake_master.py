"""A master of Mooncake for tests, in a network with nothing but loopback where one can be had."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from stepwell_testkit.server import Server, lacking

CLONE_NEWNET = 0x40000000


@contextmanager
def own_network() -> Iterator[None]:
    """Mooncake's clients listen on all addresses; here that is loopback. Threads started inside are inside."""
    libc = ctypes.CDLL(None, use_errno=True)
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        entered = libc.unshare(CLONE_NEWNET) == 0
        if entered:
            subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        yield
        if entered:
            libc.setns(before, CLONE_NEWNET)
    finally:
        os.close(before)


def master(folder: Path) -> Server:
    """Not started yet. Skips where the plugin or its client is not there."""
    if find_spec("stepwell_mooncake") is None:
        lacking("stepwell-mooncake is not installed")
    from stepwell_mooncake.wheel import missing

    if (why := missing()) is not None:
        lacking(why)
    spec = find_spec("mooncake")
    assert spec is not None and spec.submodule_search_locations
    program = str(Path(spec.submodule_search_locations[0]) / "mooncake_master")

    def command(ports: Sequence[int]) -> list[str]:
        where = [f"--rpc_port={ports[0]}", "--metrics_host=127.0.0.1", f"--metrics_port={ports[1]}"]
        return [program, "--rpc_address=127.0.0.1", "--default_kv_lease_ttl=100", *where]

    return Server(command, folder, ports=2)
