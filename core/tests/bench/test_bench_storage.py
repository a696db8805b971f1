"""The storage benchmark: that it measures what it says, says what went wrong, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from stepwell import (
    DONE,
    MISSING,
    ArenaView,
    Capability,
    Context,
    Failed,
    Full,
    GroupSpec,
    NoConfig,
    Offer,
    PageKey,
    PageResult,
    PageViews,
    StepwellError,
    Storage,
)
from stepwell.bench.baseline import Fio, Memcpy, Plain, Terms, can_direct
from stepwell.bench.moves import Bare, Batches, Subject
from stepwell.bench.own_time import OTHER, OWN, Profiler
from stepwell.bench.rates import measure
from stepwell.bench.storage import command
from stepwell.cache.arena import TRAILER_BYTES, Arena
from stepwell.cli.storage_open import Store
from stepwell.config import Chosen, Origin

PAGE = 64 * 1024
PAGES = 128


class Shelf(Storage):
    """Pages in a dictionary, with one thing wrong if asked."""

    def __init__(self, wrong: str = "") -> None:
        self.pages: dict[bytes, bytes] = {}
        self.wrong = wrong
        self.most = 0
        self.calls: list[int] = []

    def contains(self, keys: Sequence[PageKey]) -> list[bool]:
        return [key in self.pages for key in keys]

    def read(self, keys: Sequence[PageKey], into: PageViews) -> list[PageResult]:
        if self.wrong == "drops":
            return [MISSING, *[DONE] * (len(keys) - 1)]
        if self.wrong != "lies":
            for key, page in zip(keys, into.buffers(), strict=True):
                page[:] = self.pages[key]
        return [DONE] * len(keys)

    def write(self, keys: Sequence[PageKey], pages: PageViews) -> list[PageResult]:
        if self.wrong == "raises":
            raise OSError("the wire is cut")
        self.calls.append(len(keys))
        self.pages |= dict(zip(keys, map(bytes, pages.buffers()), strict=True))
        self.most = max(self.most, len(self.pages))
        results: list[PageResult] = [DONE] * len(keys)
        if self.wrong == "fails":
            results[-1] = Failed("full")
        return results[:-1] if self.wrong == "short" else results

    def delete(self, keys: Sequence[PageKey]) -> None:
        for key in keys:
            self.pages.pop(key, None)


class Client:
    """What a shelf would be built on."""

    def __init__(self, wrong: str = "") -> None:
        self.pages: dict[bytes, bytes] = {}
        self.wrong = wrong
        self.most = 0
        self.closed = False

    def put(self, keys: Sequence[PageKey], pages: PageViews) -> None:
        if self.wrong == "raises":
            raise OSError("the wire is cut")
        self.pages |= dict(zip(keys, map(bytes, pages.buffers()), strict=True))
        self.most = max(self.most, len(self.pages))

    def get(self, keys: Sequence[PageKey], into: PageViews) -> None:
        if self.wrong != "lies":
            for key, page in zip(keys, into.buffers(), strict=True):
                page[:] = self.pages[key]

    def close(self) -> None:
        self.closed = True


class TidyClient(Client):
    def delete(self, keys: Sequence[PageKey]) -> None:
        for key in keys:
            del self.pages[key]


@pytest.fixture
def arena() -> Iterator[Arena]:
    arena = Arena.create([GroupSpec("bench", Full(), PAGE - TRAILER_BYTES, (0,))], 1, [PAGES])
    np.frombuffer(arena.memory, dtype=np.uint32)[:] = np.arange(PAGES * PAGE // 4, dtype=np.uint32) + 1
    yield arena
    arena.close()


def store(shelf: Shelf) -> Store:
    return Store(Chosen("storage", Offer("shelf", lambda *_: shelf), NoConfig(), Origin("test")), shelf)


def subject(shelf: Shelf, arena: Arena, per_call: int = 64) -> Subject:
    return Subject(store(shelf), Batches(arena, per_call, 2))


def memcpy(arena: Arena) -> Memcpy:
    return Memcpy(arena.memory, PAGE, PAGES)


def test_it_measures_put_get_and_contains(arena: Arena) -> None:
    shelf = Shelf()
    before = bytes(arena.memory)
    rows, asked = measure("shelf", subject(shelf, arena), memcpy(arena), None, PAGE, PAGES, 3)
    assert [(row.backend, row.page_bytes, row.op, row.baseline) for row in rows] == [
        ("shelf", PAGE, "put", "memcpy"),
        ("shelf", PAGE, "get", "memcpy"),
    ]
    for row in rows:
        assert row.spread[0] <= row.mb_s <= row.spread[1]
        assert row.ratio == pytest.approx(row.mb_s / row.baseline_mb_s, abs=0.01)
        assert (
            row.spread[0] / row.baseline_spread[1] - 0.01 <= row.round_ratio <= row.spread[1] / row.baseline_spread[0]
        )
    assert asked.keys == PAGES and 0 < asked.spread[0] <= asked.keys_s <= asked.spread[1]
    assert shelf.most == PAGES and not shelf.pages, "every round starts without pages"
    assert bytes(arena.memory) == before


@pytest.mark.parametrize(("per_call", "calls"), [(64, [64, 64]), (50, [28, 50, 50]), (1000, [128])])
def test_pages_go_in_calls_of_the_size_that_was_asked_for(arena: Arena, per_call: int, calls: list[int]) -> None:
    shelf = Shelf()
    subject(shelf, arena, per_call).put()
    assert sorted(shelf.calls) == calls


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("fails", "did not write, the first for Failed"),
        ("short", "answers"),
        ("drops", "dropped 1 of 64 pages that the round had put; it needs room for 2 x --mib"),
        ("lies", "did not fill"),
        ("raises", "storage 'shelf': write: OSError: the wire is cut"),
    ],
)
def test_a_backend_that_does_not_do_the_work_is_no_result(arena: Arena, wrong: str, words: str) -> None:
    with pytest.raises(StepwellError, match=words):
        measure("shelf", subject(Shelf(wrong), arena), memcpy(arena), None, PAGE, PAGES, 1)


@pytest.mark.parametrize(
    ("wrong", "words"), [("lies", "did not fill"), ("raises", "the client library alone: OSError")]
)
def test_a_client_that_does_not_do_the_work_is_no_baseline(arena: Arena, wrong: str, words: str) -> None:
    bare = Bare(lambda: Client(wrong), Batches(arena, 64, 2), store(Shelf()))
    with pytest.raises(StepwellError, match=words):
        measure("shelf", subject(Shelf(), arena), bare, None, PAGE, PAGES, 1)


@pytest.mark.parametrize(("client", "most"), [(TidyClient(), PAGES), (Client(), 3 * PAGES)])
def test_the_client_alone_is_the_baseline(arena: Arena, client: Client, most: int) -> None:
    before = bytes(arena.memory)
    bare = Bare(lambda: client, Batches(arena, 64, 2), store(Shelf()))
    rows, _ = measure("shelf", subject(Shelf(), arena), bare, memcpy(arena), PAGE, PAGES, 2)
    assert {row.baseline for row in rows} == {"native"} and all(row.plain_ratio for row in rows)
    assert client.most == most, "one that can forget pages does so after each round"
    bare.close()
    assert client.closed
    assert bytes(arena.memory) == before


@pytest.mark.parametrize("direct", [True, False])
def test_the_plain_baseline_writes_and_reads_every_page(arena: Arena, tmp_path: Path, direct: bool) -> None:
    if direct and not can_direct(tmp_path):
        pytest.skip("no direct I/O here")
    plain = Plain(Terms(tmp_path, PAGE, PAGES, 3, direct), arena.memory)
    before = bytes(arena.memory)
    assert plain.put() > 0
    assert (tmp_path / "baseline.plain").read_bytes() == before
    arena.memory[:] = bytes(len(arena.memory))
    assert plain.get() > 0
    assert bytes(arena.memory) == before
    plain.clear()
    assert not list(tmp_path.iterdir())


def test_fio_is_given_the_terms(tmp_path: Path) -> None:
    line = " ".join(Fio(Terms(tmp_path, 262144, 64, 4, True)).command)
    for part in ("--bs=262144", "--numjobs=4", "--size=4194304", "--direct=1", "--fallocate=posix"):
        assert part in line


@pytest.mark.skipif(shutil.which("fio") is None, reason="fio is not installed")
def test_fio_runs_on_these_terms(tmp_path: Path) -> None:
    fio = Fio(Terms(tmp_path, 65536, 64, 4, can_direct(tmp_path)))
    assert fio.put() > 0
    assert fio.get() > 0


# --- the profile --------------------------------------------------------------------------------------------------


def test_time_is_told_apart_by_whose_code_runs() -> None:
    spin = "def spin(n):\n    x = 0\n    for i in range(n):\n        x += i\n    return x\n"
    ours: dict[str, Callable[[int], int]] = {"__name__": "plug.store"}  # type: ignore[dict-item]
    theirs: dict[str, Callable[[int], int]] = {"__name__": "client"}  # type: ignore[dict-item]
    exec(spin, ours)  # type: ignore[arg-type]
    exec(spin, theirs)  # type: ignore[arg-type]
    profiler = Profiler("plug")
    found = profiler.nanoseconds(lambda: ours["spin"](300_000))
    assert found[OWN] > 10 * found.get(OTHER, 0) > -1
    found = profiler.nanoseconds(lambda: theirs["spin"](300_000))
    assert found[OTHER] > 10 * found.get(OWN, 0)
    exec("def call(n):\n    return sorted(n)\n", ours)  # type: ignore[arg-type]
    numbers = list(np.random.default_rng(0).random(200_000))
    found = profiler.nanoseconds(lambda: ours["call"](numbers))  # type: ignore[arg-type]
    assert found["sorted"] > 10 * found[OWN]


def test_the_profile_sees_what_a_page_costs() -> None:
    done = CliRunner().invoke(
        command, ["--backend", "memory", "--page-kib", "64", "--mib", "1", "--rounds", "1", "--profile", "--json"]
    )
    assert done.exit_code == 0, done.output
    rows = json.loads(done.output)["profile"]
    assert [row["op"] for row in rows] == ["contains", "write", "read"]
    assert all(row["pages"] == 4096 and row["us"] > 0 for row in rows)
    assert all(row["own_us"] > 0 for row in rows), "this one is Python for each page"


# --- the command --------------------------------------------------------------------------------------------------


def test_the_command_on_a_backend_without_files() -> None:
    done = CliRunner().invoke(
        command, ["--backend", "memory", "--page-kib", "64", "--mib", "4", "--rounds", "1", "--json"]
    )
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    assert [(row["op"], row["baseline"]) for row in found["rows"]] == [("put", "memcpy"), ("get", "memcpy")]
    assert [(row["page_bytes"], row["keys"]) for row in found["contains"]] == [(65536, 64)]
    assert "profile" not in found


@pytest.mark.parametrize("place", ["--path", "--set", "--config"])
def test_the_command_leaves_nothing_behind(tmp_path: Path, place: str) -> None:
    pytest.importorskip("stepwell_file")
    folder = tmp_path / "here"
    folder.mkdir()
    config = tmp_path / "config.toml"
    config.write_text(f'[storage]\nuse = "file"\npath = "{folder}"\n')
    where = {
        "--path": ["--backend", "file", "--path", str(folder)],
        "--set": ["--backend", "file", "--set", f"storage.path={folder}"],
        "--config": ["--config", str(config)],
    }[place]
    done = CliRunner().invoke(command, [*where, "--page-kib", "64", "--mib", "4", "--rounds", "1", "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    assert {row["baseline"] for row in found["rows"]} == {"plain" if shutil.which("fio") is None else "fio"}
    assert not list(folder.iterdir())


SERVER = """
import json, sys, time
from pathlib import Path
from dataclasses import dataclass
from stepwell import DONE, Capability, Offer, Storage, hookimpl

@dataclass(frozen=True)
class Config:
    url: Path
    slow_s: float = 0.0

class Client:
    def __init__(self, config, context, arena):
        self.folder, self.keys = config.url, set()
    def put(self, keys, pages):
        self.keys |= set(keys)
        for key, page in zip(keys, pages.buffers()):
            (self.folder / f"native-{key.hex()}").write_bytes(page)
    def get(self, keys, into):
        for key, page in zip(keys, into.buffers()):
            page[:] = (self.folder / f"native-{key.hex()}").read_bytes()
    def close(self):
        for key in self.keys:
            (self.folder / f"native-{key.hex()}").unlink(missing_ok=True)

class Remote(Storage):
    def __init__(self, config, context):
        self.folder, self.slow_s = config.url, config.slow_s
    def contains(self, keys):
        return [(self.folder / key.hex()).exists() for key in keys]
    def read(self, keys, into):
        for key, page in zip(keys, into.buffers()):
            page[:] = (self.folder / key.hex()).read_bytes()
        return [DONE] * len(keys)
    def write(self, keys, pages):
        for key, page in zip(keys, pages.buffers()):
            (self.folder / key.hex()).write_bytes(page)
        time.sleep(self.slow_s)
        return [DONE] * len(keys)
    def delete(self, keys):
        for key in keys:
            (self.folder / key.hex()).unlink(missing_ok=True)

@hookimpl
def stepwell_storages():
    return [Offer("remote", Remote, Config, native=Client, provides=frozenset({Capability.DELETES}))]
"""


@pytest.fixture
def server(
    tmp_path: Path, fake_dist: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., subprocess.Popen[str]]:
    """Runs `stepwell storage bench` on a server that outlives it: its pages are the files in `tmp_path / "server"`."""
    path = fake_dist("stepwell-remote", {"remote_plugin": SERVER}, {"stepwell.v1": {"remote": "remote_plugin"}})
    (tmp_path / "server").mkdir()

    def run(*more: str) -> subprocess.Popen[str]:
        options = ["--backend", "remote", "--set", f"storage.url={tmp_path / 'server'}", "--page-kib", "64"]
        return subprocess.Popen(
            [sys.executable, "-m", "stepwell", "storage", "bench", *options, *more],
            env={**os.environ, "PYTHONPATH": str(path), "STEPWELL_PLUGINS": "remote", "HOME": str(tmp_path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return run


def test_a_server_has_its_client_as_baseline_and_keeps_nothing(
    server: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    process = server("--mib", "4", "--rounds", "1", "--json")
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert {row["baseline"] for row in json.loads(out)["rows"]} == {"native"}
    assert not list((tmp_path / "server").iterdir())


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_server_keeps_nothing_of_a_bench_that_was_ended(
    server: Callable[..., subprocess.Popen[str]], tmp_path: Path, how: signal.Signals
) -> None:
    process = server("--mib", "16", "--set", "storage.slow_s=0.5", "--pages-per-call", "16", "--callers", "1")
    while process.poll() is None and not any(len(path.name) == 80 for path in (tmp_path / "server").iterdir()):
        time.sleep(0.01)
    process.send_signal(how)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "interrupted\n")
    assert not list((tmp_path / "server").iterdir())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--backend", "nowhere"], "nothing installed offers it"),
        ([], "no storage is named: give --backend"),
        (["--backend", "memory", "--set", "storage.gibi=1"], "storage.gibi"),
        (["--backend", "memory", "--page-kib", "6"], "whole blocks of 4 KiB"),
        (["--backend", "memory", "--set", "storage.gib=0.001", "--mib", "4", "--page-kib", "2048"], "did not write"),
    ],
)
@pytest.mark.parametrize("name", [["bench", "storage"], ["storage", "bench"]])
def test_what_is_wrong_is_one_sentence(name: list[str], options: list[str], words: str) -> None:
    from stepwell.cli import root

    done = CliRunner().invoke(root, [*name, *options])
    assert done.exit_code == 2
    assert words in done.output and "Traceback" not in done.output


def test_contexts_are_what_core_hands_out(arena: Arena) -> None:
    """The client is made with settings, context and arena, as an offer says."""
    seen: list[object] = []

    def native(config: NoConfig, context: Context, view: ArenaView) -> Client:
        seen.extend([config, context.world, view.nbytes])
        return Client()

    from stepwell.bench.target import native as made

    offer: Offer[Storage] = Offer("shelf", lambda *_: Shelf(), native=native, provides=frozenset({Capability.DELETES}))
    made(Chosen("storage", offer, NoConfig(), Origin("test")), Path("/nowhere"), arena)
    assert seen == [NoConfig(), 1, arena.nbytes]
