"""One conversation through every store: the demonstration's server, restarted in between, its third tier each in turn.

Starts what a store needs (a master, a database, a peer) on loopback, asks each turn through the cache and without it,
restarts the server, and wants equal texts and hits from storage. Prints a table and writes build/stores.json.
`python docs/demo/stores.py redis mooncake` runs some of them.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from demo import CONFIG, CONVERSATIONS, OUT, ROOT, SYSTEM, Turn, server, turns
from rich.console import Console
from rich.table import Table

from stepwell_testkit.server import Server

RESTART_AFTER = 2
TALK = "loans"
STORAGE_TABLE = "[storage]"


@dataclass(frozen=True)
class Setup:
    """What the server is told, and what its process finds in its environment."""

    table: Mapping[str, object]
    env: Mapping[str, str] | None = None


@contextmanager
def file(folder: Path) -> Iterator[Setup]:
    """A folder."""
    yield Setup({"use": "file", "path": str(folder / "pages"), "gib": 1})


@contextmanager
def redis(folder: Path) -> Iterator[Setup]:
    """A Redis server that keeps everything in memory."""
    with _redis(folder) as running:
        yield Setup({"use": "redis", "url": f"redis://127.0.0.1:{running.port}/0"})


@contextmanager
def mooncake(folder: Path) -> Iterator[Setup]:
    """A Mooncake master, and a process that gives the store its memory."""
    import mooncake as client

    program = str(Path(client.__path__[0]) / "mooncake_master")

    def master_command(ports: Sequence[int]) -> list[str]:
        where = [f"--rpc_port={ports[0]}", "--metrics_host=127.0.0.1", f"--metrics_port={ports[1]}"]
        return [program, "--rpc_address=127.0.0.1", *where, "--logtostderr=true"]

    with Server(master_command, folder, ports=2) as master:
        lend = [sys.executable, "-m", "stepwell", "mooncake", "segment", "--gib", "0.5"]
        with Server(
            lambda ports: [*lend, "--master", f"127.0.0.1:{master.port}"],
            folder,
            ready=lambda ports: any("lending" in log.read_text() for log in folder.glob("*.log")),
        ):
            yield Setup({"use": "mooncake", "master": f"127.0.0.1:{master.ports[0]}"})


@contextmanager
def nixl(folder: Path) -> Iterator[Setup]:
    """A folder through NIXL's POSIX backend."""
    yield Setup({"use": "nixl", "path": str(folder / "pages"), "gib": 1})


@contextmanager
def nixl_ucx(folder: Path) -> Iterator[Setup]:
    """The memory of a peer process through NIXL's UCX backend."""
    command = [sys.executable, "-m", "stepwell", "nixl", "peer", "--gib", "0.5"]
    with Server(lambda ports: [*command, "--listen", f"127.0.0.1:{ports[0]}"], folder) as peer:
        yield Setup({"use": "nixl-ucx", "peer": f"127.0.0.1:{peer.port}"})


@contextmanager
def nixl_obj(folder: Path) -> Iterator[Setup]:
    """A bucket of a simulated S3 through NIXL's OBJ backend."""
    import boto3

    command = [str(Path(sys.executable).with_name("moto_server")), "-H", "127.0.0.1"]
    with Server(lambda ports: [*command, "-p", str(ports[0])], folder) as s3:
        url = f"http://127.0.0.1:{s3.port}"
        keys = {"aws_access_key_id": "key", "aws_secret_access_key": "secret", "region_name": "us-east-1"}
        boto3.client("s3", endpoint_url=url, **keys).create_bucket(Bucket="pages")
        table = {"use": "nixl-obj", "bucket": "pages", "endpoint": url, "access_key": "key"}
        yield Setup({**table, "secret_key": {"env": "DEMO_SECRET"}, "threads": 1}, {"DEMO_SECRET": "secret"})


@contextmanager
def threefs(folder: Path) -> Iterator[Setup]:
    """A folder in the place of a 3FS mount, and the tests' double of USRBIO, since no 3FS can run here."""
    (folder / "3fs-virt" / "iovs").mkdir(parents=True)
    env = {"PYTHONPATH": str(ROOT / "plugins/threefs/tests/double"), "HF3FS_DOUBLE_MOUNTS": str(folder.resolve())}
    yield Setup({"use": "3fs", "path": str(folder / "pages"), "gib": 1, "usrbio": True}, env)


@contextmanager
def threefs_posix(folder: Path) -> Iterator[Setup]:
    """A plain folder, as a 3FS mount without USRBIO."""
    yield Setup({"use": "3fs", "path": str(folder / "pages"), "gib": 1, "usrbio": False})


@contextmanager
def rocksdb(folder: Path) -> Iterator[Setup]:
    """AIBrix's RocksDB connector."""
    yield Setup({"use": "aibrix", "connector": "rocksdb", "path": str(folder / "rocks")})


@contextmanager
def shfs(folder: Path) -> Iterator[Setup]:
    """AIBrix's shared folder."""
    yield Setup({"use": "aibrix", "connector": "shfs", "path": str(folder / "shfs")})


@contextmanager
def tiered(folder: Path) -> Iterator[Setup]:
    """A small folder in front of a Redis server."""
    with _redis(folder) as running:
        fast = {"use": "file", "path": str(folder / "fast"), "gib": 0.05}
        yield Setup(
            {"use": "tiered", "fast": fast, "large": {"use": "redis", "url": f"redis://127.0.0.1:{running.port}"}}
        )


def _redis(folder: Path) -> Server:
    command = ["redis-server", "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--maxmemory", "512mb"]
    return Server(lambda ports: [*command, "--port", str(ports[0])], folder)


STORES: Mapping[str, Callable[[Path], AbstractContextManager[Setup]]] = {
    "file": file,
    "redis": redis,
    "mooncake": mooncake,
    "nixl": nixl,
    "nixl-ucx": nixl_ucx,
    "nixl-obj": nixl_obj,
    "3fs": threefs,
    "3fs-posix": threefs_posix,
    "aibrix-rocksdb": rocksdb,
    "aibrix-shfs": shfs,
    "tiered": tiered,
}


@dataclass
class Result:
    """What one store showed."""

    store: str
    turns: list[Turn]
    seconds: float
    failures: list[str]


def main() -> int:
    """Run the stores asked for; 0 only where each showed what it should."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stores", nargs="*", metavar="STORE", help=f"of {', '.join(STORES)}; all unless named")
    asked = parser.parse_args().stores or list(STORES)
    unknown = [name for name in asked if name not in STORES]
    if unknown:
        parser.error(f"no such store: {', '.join(unknown)}; have {', '.join(STORES)}")
    console = Console()
    results = [run(name, console) for name in asked]
    show(console, results)
    out = OUT.with_name("stores.json")
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps([asdict(result) for result in results], indent=1))
    console.print(f"wrote {out.relative_to(ROOT)}")
    return 1 if any(result.failures for result in results) else 0


def run(name: str, console: Console) -> Result:
    """The conversation through one store."""
    begin = time.monotonic()
    history = {TALK: [{"role": "system", "content": SYSTEM}]}
    found: list[Turn] = []
    folder = Path(tempfile.mkdtemp(prefix=f"stepwell-demo-{name}-"))
    log = OUT.parent / "demo" / f"{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.unlink(missing_ok=True)
    try:
        with ExitStack() as stack:
            setup = stack.enter_context(STORES[name](folder))
            config = folder / "demo.toml"
            config.write_text(_config(setup.table))
            for part in (range(RESTART_AFTER), range(RESTART_AFTER, len(CONVERSATIONS[TALK]))):
                with server(log, config, setup.env) as client, console.status(f"{name}: the server answers"):
                    found += turns(client, history, part)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    result = Result(name, found, round(time.monotonic() - begin, 1), verdict(found))
    console.print(f"{name}: {'; '.join(result.failures) or 'shown'} ({result.seconds:.0f} s)", highlight=False)
    return result


def verdict(found: Sequence[Turn]) -> list[str]:
    """What it failed to show."""
    failures = [f"turn {turn.turn}: text differs from cache-off" for turn in found if not turn.equal]
    if not found[RESTART_AFTER].cached["storage"]:
        failures.append("no hit from storage after the restart")
    return failures


def show(console: Console, results: Sequence[Result]) -> None:
    """Tokens from storage at each turn, the restart before the third."""
    table = Table(title="Tokens that came from storage, by turn; the server was restarted before turn 2")
    for column in ("store", *(f"turn {turn.turn}" for turn in results[0].turns), "equal"):
        table.add_column(column, justify="left" if column == "store" else "right", no_wrap=True)
    for result in results:
        tokens = [str(turn.cached["storage"]) for turn in result.turns]
        table.add_row(result.store, *tokens, str(all(turn.equal for turn in result.turns)))
    console.print(table)


def _config(table: Mapping[str, object]) -> str:
    """The demonstration's config with another storage."""
    head, _, _ = CONFIG.read_text().partition(STORAGE_TABLE)
    return head + "\n".join(_toml("storage", table)) + "\n"


def _toml(name: str, table: Mapping[str, object]) -> Iterator[str]:
    """A table and those within it; strings and numbers are written alike in JSON and TOML."""
    yield f"[{name}]"
    inner = {key: value for key, value in table.items() if isinstance(value, Mapping)}
    yield from (f"{key} = {json.dumps(value)}" for key, value in table.items() if key not in inner)
    for key, value in inner.items():
        yield from _toml(f"{name}.{key}", value)


if __name__ == "__main__":
    sys.exit(main())
