"""`stepwell storage`: what it prints, what it removes, and how it ends."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import IO

import pytest

from stepwell import Full, GroupSpec
from stepwell.cache.arena import slot_bytes
from stepwell.cli import storage_check, storage_remove
from stepwell.cli.lazy import Lazy
from stepwell.engine.seal import seal

from .conftest import Ran, Shell, runner

RACK = """
import time
from dataclasses import dataclass
from pathlib import Path
from stepwell import DONE, MISSING, Capability, ConfigError, Failed, Offer, Storage, StoredPage, hookimpl

@dataclass(frozen=True)
class Config:
    url: Path
    wrong: str = ""
    slow_s: float = 0.0

class Rack(Storage):
    def __init__(self, config, context):
        self.at, self.wrong, self.slow_s, self.attached = config.url, config.wrong, config.slow_s, False
        if not self.at.is_dir():
            raise ConfigError(f"storage.url: nobody answers at {self.at}")
        if self.wrong == "make":
            raise OSError("no route")
    def attach(self, arena):
        assert len(arena.memory) == arena.nbytes
        self.attached = True
    def contains(self, keys):
        assert self.attached
        return [(self.at / key.hex()).exists() for key in keys]
    def read(self, keys, into):
        assert self.attached
        (self.at.parent / "reading").touch()
        time.sleep(self.slow_s)
        if self.wrong == "read":
            raise OSError("the wire is cut")
        return [self.one(key, page) for key, page in zip(keys, into.buffers())]
    def one(self, key, page):
        if self.wrong == "fails":
            return Failed("no answer")
        if self.wrong == "lies":
            return DONE
        try:
            page[:] = (self.at / key.hex()).read_bytes()
        except FileNotFoundError:
            return MISSING
        return DONE
    def write(self, keys, pages):
        raise AssertionError("nobody writes here")
    def delete(self, keys):
        assert self.attached
        if self.wrong == "delete":
            raise OSError("the wire is cut")
        for key in keys:
            (self.at / key.hex()).unlink(missing_ok=True)
    def scan(self):
        assert self.attached
        if self.wrong == "late":
            raise NotImplementedError("this part of it cannot list its pages")
        for path in sorted(self.at.iterdir()):
            page = StoredPage(bytes.fromhex(path.name), path.stat().st_size)
            if self.wrong == "vanish":
                path.unlink()
            yield [page]
        if self.wrong == "scan":
            raise OSError("the wire is cut")
    def close(self):
        if self.wrong == "close":
            raise OSError("it would not close")

@hookimpl
def stepwell_storages():
    can = frozenset({Capability.LISTS, Capability.DELETES})
    return [Offer("rack", Rack, Config, provides=can), Offer("blind", Rack, Config)]
"""

FULL = GroupSpec("full", Full(), 1000, (0,))
SLIM = GroupSpec("slim", Full(), 10, (1,))


class Rack:
    """A store on disk, and `stepwell storage` on it."""

    def __init__(self, shell: Shell, folder: Path) -> None:
        shell.install("rack", RACK)
        self.shell, self.folder = shell, folder
        folder.mkdir()

    def fill(self, count: int, group: GroupSpec = FULL, page: int = 16) -> list[str]:
        """Sealed pages; their keys."""
        dice = random.Random(f"{count} {group.name} {page}")
        names = []
        for _ in range(count):
            key = dice.randbytes(32) + group.tag
            payload = group.token_bytes * page
            slot = bytearray(dice.randbytes(slot_bytes(payload)))
            seal(memoryview(slot), payload, key)
            (self.folder / key.hex()).write_bytes(slot)
            names.append(key.hex())
        return names

    def options(self, *more: str, backend: str = "rack", **settings: object) -> list[str]:
        sets = [f"--set=storage.{name}={value}" for name, value in {"url": self.folder, **settings}.items()]
        return ["--backend", backend, *sets, *more]

    def run(self, command: str, *more: str, **settings: object) -> Ran:
        return self.shell.run("storage", command, *self.options(**settings), *more)  # type: ignore[arg-type]

    def typed(self, text: str, command: str, *more: str) -> Ran:
        """With something on standard input."""
        from stepwell.cli import root

        result = runner().invoke(root, ["storage", command, *self.options(), *more], input=text)
        return Ran(result.exit_code, result.stdout, result.stderr)

    @property
    def left(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())


@pytest.fixture
def rack(shell: Shell, tmp_path: Path) -> Rack:
    return Rack(shell, tmp_path / "pages")


# --- ls and du ----------------------------------------------------------------------------------------------------


def test_ls_is_a_line_a_page(rack: Rack) -> None:
    full, slim = rack.fill(3), rack.fill(2, SLIM)
    ran = rack.run("ls")
    assert ran.code == 0
    assert sorted(ran.out.splitlines()) == sorted([f"{key}  16384" for key in full] + [f"{key}  512" for key in slim])


def test_ls_as_json_is_an_object_a_line(rack: Rack) -> None:
    keys = rack.fill(3)
    lines = [json.loads(line) for line in rack.run("ls", "--json").out.splitlines()]
    assert sorted(line["key"] for line in lines) == sorted(keys)
    assert {line["nbytes"] for line in lines} == {16384}


def test_ls_of_some(rack: Rack) -> None:
    keys = rack.fill(20)
    assert len(rack.run("ls", "--limit", "7").out.splitlines()) == 7
    assert rack.run("ls", "--prefix", keys[4][:11].upper()).out == f"{keys[4]}  16384\n"
    assert rack.run("ls", "--prefix", "0" * 80).out == ""


def test_more_than_there_can_be_is_refused_as_a_limit(rack: Rack) -> None:
    ran = rack.run("ls", "--limit", "9" * 30)
    assert ran.code == 2
    assert "--limit" in ran.err and "is not in the range" in ran.err


def test_ls_stops_the_scan_at_its_limit(rack: Rack) -> None:
    rack.fill(5)
    assert rack.run("ls", "--limit", "5", wrong="scan").code == 0
    assert rack.run("ls", wrong="scan").code == 2


def test_du_sums_up_by_group(rack: Rack) -> None:
    rack.fill(3)
    rack.fill(2, SLIM)
    found = json.loads(rack.run("du", "--json").out)
    assert found == {
        "pages": 5,
        "nbytes": 3 * 16384 + 2 * 512,
        "groups": [
            {"tag": FULL.tag.hex(), "pages": 3, "nbytes": 49152},
            {"tag": SLIM.tag.hex(), "pages": 2, "nbytes": 1024},
        ],
    }
    lines = [line.split() for line in rack.run("du").out.splitlines()]
    assert [line[:4] for line in lines] == [
        [FULL.tag.hex(), "3", "pages", "49,152"],
        [SLIM.tag.hex(), "2", "pages", "1,024"],
        ["total", "5", "pages", "50,176"],
    ]


def test_an_empty_store_is_no_error(rack: Rack) -> None:
    assert rack.run("ls") == Ran(0, "", "")
    assert json.loads(rack.run("du", "--json").out) == {"pages": 0, "nbytes": 0, "groups": []}
    assert rack.run("clear", "--yes").out == "removed 0 pages, 0 bytes\n"
    assert rack.run("verify").code == 0


# --- rm and clear -------------------------------------------------------------------------------------------------


def test_rm_says_how_many_were_there(rack: Rack) -> None:
    keys = rack.fill(4)
    ran = rack.run("rm", keys[0], keys[2], keys[2].upper(), "ab" * 40)
    assert (ran.code, ran.out) == (0, "removed 2 of 3 pages; 1 was not there\n")
    assert rack.left == sorted([keys[1], keys[3]])
    assert json.loads(rack.run("rm", "--json", keys[1], keys[0]).out) == {"asked": 2, "there": 1}
    assert rack.run("rm", keys[3]).out == "removed 1 of 1 page\n"


def test_rm_takes_what_ls_prints(rack: Rack) -> None:
    rack.fill(30)
    listed = rack.run("ls", "--limit", "20").out
    assert rack.typed(f"{listed}\n\n", "rm", "-").out == "removed 20 of 20 pages\n"
    assert len(rack.left) == 10


@pytest.mark.parametrize("key", ["abc", "zz" * 40, "ab" * 39, "ab" * 41, "ab " * 40, ""])
def test_rm_refuses_what_is_no_key_and_removes_nothing(rack: Rack, key: str) -> None:
    keys = rack.fill(2)
    ran = rack.run("rm", keys[0], key)
    assert ran.code == 2 and "is no key: a key has 80 hexadecimal digits" in ran.err
    assert rack.left == sorted(keys)


def test_rm_names_the_line_that_is_no_key(rack: Rack) -> None:
    keys = rack.fill(2)
    ran = rack.typed(f"{keys[0]}\nnonsense\n", "rm", "-")
    assert ran.code == 2 and "line 2: 'nonsense' is no key" in ran.err
    assert rack.left == sorted(keys)


def test_a_store_that_may_keep_pages_is_not_said_to_have_removed_them(rack: Rack) -> None:
    keys = rack.fill(1)
    assert rack.run("rm", keys[0], backend="blind").out == "asked the storage to drop 1 of 1 page\n"


def test_clear_asks_and_says_what_goes(rack: Rack) -> None:
    rack.fill(12)
    ran = rack.typed("n\n", "clear")
    assert (ran.code, ran.out) == (1, "nothing was removed\n")
    assert "Remove 12 pages, 196.6 kB, from storage 'rack'?" in ran.err and len(rack.left) == 12
    ran = rack.typed("", "clear")
    assert ran.code == 2 and "give --yes" in ran.err and len(rack.left) == 12
    ran = rack.typed("y\n", "clear")
    assert (ran.code, ran.out) == (0, "removed 12 pages, 196.6 kB\n")
    assert rack.left == []


def test_clear_without_asking(rack: Rack) -> None:
    rack.fill(12)
    ran = rack.run("clear", "--yes", "--json")
    assert (ran.code, json.loads(ran.out)) == (0, {"pages": 12, "nbytes": 12 * 16384})
    assert rack.left == []


# --- verify -------------------------------------------------------------------------------------------------------


def test_verify_reads_pages_of_all_sizes(rack: Rack) -> None:
    for page in (1, 4, 16, 64):
        rack.fill(70, page=page)
        rack.fill(70, SLIM, page)
    ran = rack.run("verify", "--threads", "3", "--json")
    found = json.loads(ran.out)
    assert ran.code == 0
    assert (found["pages"], found["good"], found["damaged"], found["complete"]) == (560, 560, [], True)
    assert found["nbytes"] == sum(path.stat().st_size for path in rack.folder.iterdir())


def spoil(rack: Rack, keys: Sequence[str]) -> dict[str, str]:
    """Damage a page in each way; what should be said of it, by key."""
    flipped, cut, grown, swapped, other, zeros = [rack.folder / key for key in keys[:6]]
    data = bytearray(flipped.read_bytes())
    data[5000] ^= 1
    flipped.write_bytes(data)
    cut.write_bytes(cut.read_bytes()[:12288])
    grown.write_bytes(grown.read_bytes() + bytes(8192))
    one, two = swapped.read_bytes(), other.read_bytes()
    swapped.write_bytes(two)
    other.write_bytes(one)
    zeros.write_bytes(bytes(16384))
    whose = "it is another page"
    words = ["the checksum differs", "no trailer", "no trailer", whose, whose, "no trailer"]
    return dict(zip(keys, words, strict=False))


def test_verify_finds_damage_of_every_kind_and_removes_it_when_asked(rack: Rack) -> None:
    keys = rack.fill(40)
    wrong = spoil(rack, keys)
    ran = rack.run("verify")
    assert ran.code == 1
    lines = ran.out.splitlines()
    said = {line.split()[1]: line for line in lines[:-1]}
    assert said.keys() == wrong.keys()
    assert all(line.startswith("damaged ") and wrong[key] in line for key, line in said.items())
    assert "40 pages" in lines[-1] and "34 good, 6 damaged, 0 unreadable" in lines[-1]
    assert rack.left == sorted(keys), "it only looks"
    found = json.loads(rack.run("verify", "--delete", "--json").out)
    assert (found["deleted"], sorted(bad["key"] for bad in found["damaged"])) == (6, sorted(wrong))
    assert rack.left == sorted(set(keys) - set(wrong))
    assert rack.run("verify").code == 0


def test_a_store_that_says_done_and_does_nothing_is_noticed(rack: Rack) -> None:
    rack.fill(200)
    found = json.loads(rack.run("verify", "--json", wrong="lies").out)
    assert len(found["damaged"]) == 200 and found["good"] == 0


def test_a_page_that_goes_meanwhile_is_no_damage(rack: Rack) -> None:
    rack.fill(20)
    ran = rack.run("verify", "--json", wrong="vanish")
    found = json.loads(ran.out)
    assert ran.code == 0
    assert (found["pages"], found["vanished"], found["good"]) == (20, 20, 0)


def test_pages_that_cannot_be_read_are_bad_and_stay(rack: Rack) -> None:
    keys = rack.fill(5)
    ran = rack.run("verify", "--json", "--delete", wrong="fails")
    found = json.loads(ran.out)
    assert ran.code == 1
    assert {bad["why"] for bad in found["unreadable"]} == {"no answer"} and found["damaged"] == []
    assert rack.left == sorted(keys)


def test_a_page_larger_than_the_memory_is_said_to_be(rack: Rack) -> None:
    rack.fill(3)
    large = rack.fill(1, page=700)
    ran = rack.run("verify", "--memory-mib", "1", "--threads", "2", "--json")
    found = json.loads(ran.out)
    assert ran.code == 1 and found["good"] == 3
    assert [bad["key"] for bad in found["unreadable"]] == large
    assert "--memory-mib" in found["unreadable"][0]["why"]
    assert rack.run("verify", "--memory-mib", "2", "--threads", "2").code == 0


def test_verify_gives_up_a_store_that_is_gone(rack: Rack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_check, "PATIENCE_S", 0.1)
    rack.fill(300)
    ran = rack.run("verify", "--threads", "1", wrong="fails", slow_s=0.06)
    assert (ran.code, ran.out) == (2, "")
    assert "storage 'rack': nothing could be read for 0.1 s (no answer)" in ran.err


# --- how it ends --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "wrong", "words"),
    [
        ("ls", "make", "storage.use = 'rack' (argument): OSError: no route"),
        ("ls", "scan", "storage 'rack': scan: OSError: the wire is cut"),
        ("du", "late", "storage 'rack': this part of it cannot list its pages"),
        ("verify", "read", "storage 'rack': read: OSError: the wire is cut"),
        ("verify", "scan", "storage 'rack': scan: OSError: the wire is cut"),
        ("clear --yes", "delete", "storage 'rack': delete: OSError: the wire is cut"),
    ],
)
def test_a_store_that_raises_is_one_sentence(rack: Rack, command: str, wrong: str, words: str) -> None:
    rack.fill(100)
    name, *more = command.split()
    ran = rack.run(name, *more, wrong=wrong)
    assert ran.code == 2
    assert ran.err == f"Error: {words}\n"


def test_a_store_that_does_not_close_is_only_said(rack: Rack) -> None:
    rack.fill(1)
    ran = rack.run("ls", wrong="close")
    assert (ran.code, ran.err) == (0, "note: storage 'rack': close: OSError: it would not close\n")


@pytest.mark.parametrize("command", ["ls", "du", "verify", "clear"])
def test_a_store_that_cannot_list_is_refused_before_it_is_made(rack: Rack, command: str) -> None:
    ran = rack.run(command, backend="blind", wrong="make")
    assert ran.code == 2
    words = f"cannot list its pages, and `stepwell storage {command}` has to know them"
    assert ran.err == f"Error: storage.use = 'blind' (argument) {words}\n"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "no storage is named: give --backend or a --config that has [storage]; have blind, memory"),
        (["--backend", "rack"], "storage.url is required and not set"),
        (["--backend", "rock"], "storage.use = 'rock' (argument): nothing installed offers it"),
        (["--backend", "rack", "--set", "storage.url=/nowhere"], "storage.url: nobody answers at /nowhere"),
        (["--backend", "rack", "--set", "storage.url=/", "--set", "storag.x=1"], "storag (--set storag.x): no such"),
        (["--config", "missing.toml"], "missing.toml"),
        (["--backend", "memory", "--prefix", "xyz"], "--prefix 'xyz': a key begins with digits 0-9 and a-f"),
        (["--backend", "memory", "--prefix", "a\n"], r"--prefix 'a\n': a key begins with digits 0-9 and a-f"),
    ],
)
def test_what_is_wrong_is_one_sentence(rack: Rack, options: list[str], words: str) -> None:
    ran = rack.shell.run("storage", "ls", *options)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("Error: ") and words in ran.err and ran.err.count("\n") == 1


SHELF = """
from dataclasses import dataclass
from pathlib import Path
from stepwell import Capability, Offer, hookimpl
from stepwell.builtin.memory import MemoryConfig, MemoryStorage

@dataclass(frozen=True)
class Config:
    path: Path

def shelf(config, context):
    config.path.mkdir(parents=True, exist_ok=True)
    return MemoryStorage(MemoryConfig(), context)

@hookimpl
def stepwell_storages():
    return [Offer("shelf", shelf, Config, provides=frozenset({Capability.LISTS, Capability.DELETES}))]
"""


@pytest.mark.parametrize("command", [("ls",), ("du",), ("verify",), ("clear", "--yes"), ("rm", "00" * 40)])
def test_a_folder_that_is_not_there_is_not_made(shell: Shell, tmp_path: Path, command: tuple[str, ...]) -> None:
    shell.install("shelf", SHELF)
    typo = tmp_path / "pagse"
    parts = ("use=mirror", "first.use=memory", "second.use=shelf")
    for sets, key in ((("use=shelf", f"path={typo}"), "path"), ((*parts, f"second.path={typo}"), "second.path")):
        ran = shell.run("storage", *command, *(f"--set=storage.{one}" for one in sets))
        words = f"there is no folder {typo}; name the one that the pages are in"
        assert (ran.code, ran.out, ran.err) == (2, "", f"Error: storage.{key}: {words}\n")
        assert not typo.exists()
    typo.mkdir()
    assert shell.run("storage", "ls", "--backend", "shelf", f"--set=storage.path={typo}").code == 0


def test_the_storage_of_a_config_of_an_engine(rack: Rack, tmp_path: Path) -> None:
    """What else the config says does not matter here."""
    keys = rack.fill(2)
    config = tmp_path / "engine.toml"
    config.write_text(
        f'[cache]\nhost_gib = 1\n[runner]\nuse = "transformers"\n[storage]\nuse = "rack"\nurl = "{rack.folder}"\n'
    )
    ran = rack.shell.run("storage", "ls", "--config", str(config))
    assert ran.code == 0, ran.err
    assert sorted(line.split()[0] for line in ran.out.splitlines()) == sorted(keys)


def process(
    rack: Rack,
    command: str,
    *more: str,
    stdin: int | IO[str] | None = None,
    stdout: int | IO[str] = subprocess.PIPE,
    **settings: object,
) -> subprocess.Popen[str]:
    path = os.pathsep.join(rack.shell._paths)
    arguments = ["storage", command, *rack.options(**settings), *more]  # type: ignore[arg-type]
    return subprocess.Popen(
        [sys.executable, "-m", "stepwell", *arguments],
        env={**os.environ, "PYTHONPATH": path, "PYTHONIOENCODING": "utf-8:strict"},
        stdin=stdin,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
    )


def eventually(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_ctrl_c_ends_verify_with_what_it_found(rack: Rack, tmp_path: Path) -> None:
    rack.fill(400)
    child = process(rack, "verify", "--threads", "1", "--json", slow_s=1)
    eventually((tmp_path / "reading").exists)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=30)
    assert child.returncode == 130, err
    found = json.loads(out)
    assert not found["complete"] and found["pages"] < 400
    assert "Traceback" not in err


def test_ctrl_c_does_not_wait_for_a_call_that_hangs(
    rack: Rack, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(storage_check, "GRACE_S", 0.2)
    rack.fill(3)

    def interrupt(self: storage_check.Verifier) -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr(storage_check.Verifier, "_judge", interrupt)
    start = time.monotonic()
    ran = rack.run("verify", "--threads", "1", slow_s=5, wrong="close")
    assert ran.code == 130 and ran.out.startswith("interrupted; ")
    assert time.monotonic() - start < 4


def test_ctrl_c_while_a_command_is_loaded_is_the_same_word(rack: Rack, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(self: Lazy) -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr(Lazy, "load", interrupt)
    ran = rack.run("ls")
    assert (ran.code, ran.out, ran.err) == (130, "", "interrupted\n")


@pytest.mark.parametrize("command", [["ls"], ["du", "--json"], ["clear", "--yes"]])
def test_output_that_finds_no_room_is_one_sentence(rack: Rack, command: list[str]) -> None:
    rack.fill(3)
    with Path("/dev/full").open("w") as full:
        child = process(rack, *command, stdout=full)
    _, err = child.communicate(timeout=30)
    assert err == "Error: what the command writes finds no room: [Errno 28] No space left on device\n"
    assert child.returncode == 2


def test_keys_that_are_no_text_or_cannot_be_read(rack: Rack, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "keys").write_bytes(b"\xff\xfe\n")
    with (tmp_path / "keys").open() as keys:
        child = process(rack, "rm", "-", stdin=keys)
    _, err = child.communicate(timeout=30)
    assert err == "Error: line 1: '\ufffd\ufffd' is no key: a key has 80 hexadecimal digits\n"
    assert child.returncode == 2
    monkeypatch.setattr(storage_remove, "sys", SimpleNamespace(stdin=None))
    ran = rack.run("rm", "-")
    assert (ran.code, ran.err) == (2, "Error: standard input is closed, and KEY '-' reads keys from it\n")


def test_ls_into_head_ends_quietly(rack: Rack) -> None:
    rack.fill(3000, SLIM)
    child = process(rack, "ls")
    assert child.stdout is not None and child.stderr is not None
    child.stdout.readline()
    child.stdout.close()
    child.wait(30)
    assert "Traceback" not in child.stderr.read()
    child.stderr.close()


# --- the file storage ---------------------------------------------------------------------------------------------


def test_it_works_on_the_file_storage(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("stepwell_file")
    monkeypatch.setenv("STEPWELL_PLUGINS", "file")
    import numpy as np

    from stepwell.assemble import Place
    from stepwell.cache.arena import Arena
    from stepwell.engine.seal import seal_all
    from stepwell_file import FileConfig
    from stepwell_file.store import FileStorage

    arena = Arena.create([FULL], 16, [64])
    ids = np.arange(64, dtype=np.int32)
    keys = [os.urandom(32) + FULL.tag for _ in ids]
    seal_all(arena.views(0, ids).buffers(), 16000, keys)
    arena.memory[16384 * 9 + 77] ^= 4
    store = FileStorage(FileConfig(tmp_path / "pages", gib=0.1), Place("file", "cpu", lambda: tmp_path))
    store.write(keys, arena.views(0, ids))
    store.close()
    arena.close()

    options = ["--backend", "file", "--set", f"storage.path={tmp_path / 'pages'}"]
    assert len(shell.run("storage", "ls", *options).out.splitlines()) == 64
    found = json.loads(shell.run("storage", "verify", *options, "--delete", "--json").out)
    assert ([bad["key"] for bad in found["damaged"]], found["good"]) == ([keys[9].hex()], 63)
    data = next((tmp_path / "pages").glob("*.data"))
    with data.open("r+b") as file:
        file.seek(4096 + 16384 * 20 + 5)
        file.write(b"damage that the storage itself finds")
    found = json.loads(shell.run("storage", "verify", *options, "--json").out)
    assert len(found["unreadable"]) == 1 and found["good"] == 62
    assert shell.run("storage", "rm", *options, keys[0].hex()).out == "removed 1 of 1 page\n"
    assert shell.run("storage", "clear", *options, "--yes", "--json").code == 0
    assert json.loads(shell.run("storage", "du", *options, "--json").out)["pages"] == 0


def test_what_an_engine_stored_is_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("stepwell_file")
    import stepwell
    from stepwell.cli import root

    storage = {"use": "file", "path": str(tmp_path / "pages")}
    cache = {"host_pages": 1024, "device_pages": 1024}
    with stepwell.Engine(runner="sim", cache=cache, storage=storage, write={"use": "write_through"}) as engine:
        for letter in "abcdef":
            engine.generate(letter * 400, max_tokens=2)
        eventually(lambda: engine.stats()["storage_pages_written"] > 100)
    ran = runner().invoke(
        root, ["storage", "verify", "--backend", "file", f"--set=storage.path={storage['path']}", "--json"]
    )
    found = json.loads(ran.stdout)
    assert ran.exit_code == 0
    assert found["good"] == found["pages"] > 100
