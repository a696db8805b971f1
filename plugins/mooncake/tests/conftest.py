"""A real master and real segments, in a network of their own.

Mooncake's clients listen on all addresses whatever they are told, so where the tests may (as root, on Linux), the
thread that runs them enters a network namespace that has nothing but loopback; threads and processes inherit it.
"""

import ctypes
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from http.client import HTTPConnection, HTTPException
from importlib.util import find_spec
from pathlib import Path

import pytest

from stepwell import DONE
from stepwell_mooncake import MooncakeConfig, make
from stepwell_mooncake.client import connect, placing
from stepwell_mooncake.store import MooncakeStorage
from stepwell_mooncake.wheel import missing
from stepwell_testkit import KitArena, KitContext
from stepwell_testkit.bench import Bench
from stepwell_testkit.server import Server, lacking

CLONE_NEWNET = 0x40000000
SEGMENT_MIB = 32
LEASE_MS = 5000
"""For so long a page that was read cannot leave, and a read may not take longer, however busy the machine is."""
CLIENT_TTL_S = 2
"""After which the master lets go of a segment whose process is gone."""
Opened = Callable[..., MooncakeStorage]
Owners = Callable[..., Server]


@pytest.fixture(scope="session")
def own_network() -> Iterator[int]:
    """A descriptor of a network namespace with loopback only; -1 where none can be made."""
    libc = ctypes.CDLL(None, use_errno=True)
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    if libc.unshare(CLONE_NEWNET) != 0:
        os.close(before)
        yield -1
        return
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    own = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    libc.setns(before, CLONE_NEWNET)
    yield own
    os.close(own)
    os.close(before)


@pytest.fixture(scope="module", autouse=True)
def inside(own_network: int) -> Iterator[None]:
    if own_network < 0:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    libc.setns(own_network, CLONE_NEWNET)
    yield
    libc.setns(before, CLONE_NEWNET)
    os.close(before)


def healthy(port: int) -> bool:
    with suppress(OSError, HTTPException, ValueError):
        connection = HTTPConnection("127.0.0.1", port, timeout=1)
        connection.request("GET", "/health")
        return bool(json.loads(connection.getresponse().read()).get("service_ready"))
    return False


def make_master(folder: Path, *options: str, lease_ms: int = LEASE_MS) -> Server:
    reason = missing()
    if reason is not None:
        lacking(reason)
    spec = find_spec("mooncake")
    assert spec is not None and spec.submodule_search_locations
    program = str(Path(spec.submodule_search_locations[0]) / "mooncake_master")

    def command(ports: tuple[int, ...]) -> list[str]:
        rpc, metrics = ports
        where = [f"--rpc_port={rpc}", "--metrics_host=127.0.0.1", f"--metrics_port={metrics}", "--logtostderr=true"]
        bounds = [f"--default_kv_lease_ttl={lease_ms}", f"--client_ttl={CLIENT_TTL_S}"]
        return [program, "--rpc_address=127.0.0.1", *where, *bounds, *options]

    return Server(command, folder, ports=2, ready=lambda ports: healthy(ports[1]))


def make_owner(folder: Path, master: Server, mib: int = SEGMENT_MIB, *offload: str) -> Server:
    marker = folder / f"owner-{master.port}-{mib}"

    def command(ports: tuple[int, ...]) -> list[str]:
        marker.unlink(missing_ok=True)
        owner = str(Path(__file__).with_name("owner.py"))
        return [sys.executable, owner, f"127.0.0.1:{master.port}", str(mib), str(marker), *offload]

    return Server(command, folder, ready=lambda ports: marker.exists())


@pytest.fixture(scope="module")
def master(inside: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with make_master(tmp_path_factory.mktemp("master")) as server:
        yield server


@pytest.fixture(scope="module")
def owner(master: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The process that has the only segment."""
    with make_owner(tmp_path_factory.mktemp("owner"), master) as server:
        yield server


@pytest.fixture(scope="module")
def forgetful(inside: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A master with a segment whose pages can leave soon after they were read."""
    with (
        make_master(tmp_path_factory.mktemp("master"), lease_ms=500) as server,
        make_owner(tmp_path_factory.mktemp("owner"), server),
    ):
        yield server


@pytest.fixture
def owners(tmp_path: Path) -> Iterator[Owners]:
    """Starts owners of segments; they end with the test."""
    with ExitStack() as servers:
        yield lambda master, *options: servers.enter_context(make_owner(tmp_path, master, *options))


@pytest.fixture
def masters(tmp_path: Path) -> Iterator[Owners]:
    """Starts masters; they end with the test."""
    with ExitStack() as servers:
        yield lambda *options, **more: servers.enter_context(make_master(tmp_path, *options, **more))


def table(master: Server, **settings: object) -> dict[str, object]:
    """The `[storage]` table that belongs to a master.

    With the client's checksum, since some tests look at each byte; the client takes it once a process. Engines that are
    started here have the storage in a process of its own, without it.
    """
    at = {"master": f"127.0.0.1:{master.ports[0]}", "metrics": f"127.0.0.1:{master.ports[1]}"}
    return {**at, "rpc_timeout_s": 1.0, "transfer_timeout_s": 1.0, "checksum": True, **settings}


@pytest.fixture(scope="class")
def own_master(inside: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A master that the tests of a class may end."""
    with make_master(tmp_path_factory.mktemp("master")) as server:
        yield server


@pytest.fixture(scope="class")
def own_owner(own_master: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The same for the process with the only segment."""
    with make_owner(tmp_path_factory.mktemp("owner"), own_master) as server:
        yield server


def open_at(master: Server, context: KitContext, **settings: object) -> MooncakeStorage:
    store = make(MooncakeConfig(**table(master, **settings)), context)  # type: ignore[arg-type]
    assert isinstance(store, MooncakeStorage)
    return store


@pytest.fixture
def opened(context: KitContext) -> Iterator[Opened]:
    """Opens storages at a master; they are closed with the test."""
    stores: list[MooncakeStorage] = []

    def open_one(master: Server, **settings: object) -> MooncakeStorage:
        stores.append(open_at(master, context, **settings))
        return stores[-1]

    yield open_one
    for store in stores:
        store.close()


@pytest.fixture
def settled() -> Callable[[Server, MooncakeStorage], MooncakeStorage]:
    """A storage once nothing is left of an outage: a segment that has gone stays with the master for a while."""

    def settle(master: Server, store: MooncakeStorage) -> MooncakeStorage:
        bench = Bench(store, 4096, 16)
        ends = time.monotonic() + 15
        while segments(master) != 1 or {*bench.write(range(16)), *bench.read(range(16))[0]} != {DONE}:
            assert time.monotonic() < ends, "the store does not come to rest"
            time.sleep(0.1)
        store.delete(bench.keys(range(16)))
        return store

    return settle


def segments(master: Server) -> int:
    """How many segments the master knows, whether or not anybody has them."""
    connection = HTTPConnection("127.0.0.1", master.ports[1], timeout=5)
    connection.request("GET", "/get_all_segments")
    return len(connection.getresponse().read().split())


@pytest.fixture(scope="module")
def lasting(inside: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    """A storage that tests hand on until one closes it: each close takes the client up to a second."""
    stores: list[MooncakeStorage] = []
    context = KitContext(tmp_path_factory.mktemp("state"))

    def one_open(master: Server) -> MooncakeStorage:
        try:
            stores[-1].contains([bytes(40)])
        except (IndexError, RuntimeError):
            stores.append(open_at(master, context, space_retries=75))
        return stores[-1]

    yield one_open
    for store in stores:
        store.close()


def flip(owner: Server, page: bytes) -> None:
    """Change a byte of a page where it lies: in the memory of the process that has the segment."""
    folder = Path(f"/proc/{owner.pid}")
    with (folder / "mem").open("r+b", 0) as memory:
        for line in (folder / "maps").read_text().splitlines():
            start, end = (int(edge, 16) for edge in line.split()[0].split("-"))
            if "rw" not in line or not SEGMENT_MIB << 20 <= end - start < 1 << 30:
                continue
            memory.seek(start)
            at = memory.read(end - start).find(page)
            if at >= 0:
                memory.seek(start + at)
                memory.write(bytes([page[0] ^ 1]))
                return
    raise AssertionError("the page lies nowhere")


@pytest.fixture
def flipped(owner: Server) -> Callable[[bytes], None]:
    return lambda page: flip(owner, page)


@pytest.fixture(scope="module")
def shared(inside: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    """A storage for all tests of a file that want the same and close none: each client takes a second or two."""
    stores: dict[str, MooncakeStorage] = {}
    context = KitContext(tmp_path_factory.mktemp("state"))

    def open_once(master: Server, **settings: object) -> MooncakeStorage:
        name = f"{master.port} {sorted(settings.items())}"
        if name not in stores:
            stores[name] = open_at(master, context, **settings)
        return stores[name]

    yield open_once
    for store in stores.values():
        store.close()


class Stranger:
    """Somebody else at the store, with a client and memory of their own."""

    def __init__(self, master: Server) -> None:
        self.client = connect(MooncakeConfig(**table(master)), 0)  # type: ignore[arg-type]
        self._room = KitArena(1 << 20, 1)
        assert self.client.register_buffer(self._room.address, self._room.nbytes) == 0

    def get(self, name: str) -> bytes:
        size = self.client.get_size(name)
        assert self.client.batch_get_into([name], [self._room.address], [size]) == [size]
        return bytes(self._room.memory[:size])

    def put(self, name: str, data: bytes | bytearray, *, pinned: bool = False) -> bool:
        self._room.memory[: len(data)] = data
        how = placing(MooncakeConfig("unused:1", pin="hard" if pinned else "none"))
        return self.client.batch_put_from([name], [self._room.address], [len(data)], how) == [0]

    def remove(self, names: list[str]) -> None:
        self.client.batch_remove(names, True)


@pytest.fixture(scope="module")
def stranger(inside: None) -> Iterator[Callable[[Server], Stranger]]:
    strangers: dict[int, Stranger] = {}

    def make_stranger(master: Server) -> Stranger:
        if master.port not in strangers:
            strangers[master.port] = Stranger(master)
        return strangers[master.port]

    yield make_stranger
    for one in strangers.values():
        one.client.close()
