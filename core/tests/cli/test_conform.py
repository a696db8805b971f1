"""doctor --conform: an installed offer under its kit, what is printed, and what is left behind."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from stepwell.cli import conform
from stepwell.cli.new import written
from stepwell.cli.probe import ending

from .conftest import Shell

SCHEDULES = """
from stepwell import Offer, SchedulePolicy, hookimpl
from stepwell.builtin.fcfs import Fcfs

class Idle(Fcfs):
    def order(self, queue, cache):
        return []

@hookimpl
def stepwell_schedulers():
    return [Offer("fair", Fcfs), Offer("idle", Idle)]
"""

FOLDER = """
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from stepwell import DONE, MISSING, Capability, Failed, Offer, Storage, StoredPage, hookimpl

@dataclass(frozen=True)
class Config:
    path: Path
    ends: str = ""

class Folder(Storage):
    def __init__(self, config, context):
        self.root, self.ends = config.path, config.ends
        self.root.mkdir(parents=True, exist_ok=True)

    def contains(self, keys):
        return [(self.root / key.hex()).exists() for key in keys]

    def read(self, keys, into):
        results = []
        for key, out in zip(keys, into.buffers()):
            try:
                page = (self.root / key.hex()).read_bytes()
            except FileNotFoundError:
                results.append(MISSING)
                continue
            if len(page) == len(out):
                out[:] = page
            results.append(DONE if len(page) == len(out) else Failed("size"))
        return results

    def write(self, keys, pages):
        if len(set(keys)) < len(keys):
            if self.ends == "crash":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.ends == "hang":
                time.sleep(600)
        for key, page in zip(keys, pages.buffers()):
            part = self.root / f"{key.hex()}.{time.monotonic_ns()}"
            part.write_bytes(page)
            part.replace(self.root / key.hex())
        return [DONE] * len(keys)

    def delete(self, keys):
        for key in keys:
            (self.root / key.hex()).unlink(missing_ok=True)

@hookimpl
def stepwell_storages():
    return [Offer("folder", Folder, Config, provides=frozenset({Capability.SHARED, Capability.DELETES}))]
"""


def test_an_offer_that_keeps_its_contract_conforms(shell: Shell) -> None:
    shell.install("fair", SCHEDULES)
    done = shell.run("doctor", "--conform", "fair")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("schedule 'fair' of fair (stepwell-fair 1.0) conforms; claims tested: none\n")
    assert " passed, 0 failed, 0 not asked for" in done.out


def test_one_that_does_not_is_told_by_the_names_of_the_promises(shell: Shell) -> None:
    shell.install("fair", SCHEDULES)
    done = shell.run("doctor", "--conform", "idle", "--json")
    assert done.code == 1
    found = json.loads(done.out)
    assert (found["conforms"], found["offer"], found["kind"]) == (False, "idle", "schedule")
    failed = {one["test"].split("[")[0]: one["why"] for one in found["failed"]}
    assert failed["test_the_order_holds_each_request_once"]
    assert not {"began", ""} & set(failed.values())
    assert found["passed"]


def test_settings_come_from_the_config_and_nothing_is_left_in_a_folder_that_they_name(shell: Shell) -> None:
    shell.install("folder", FOLDER)
    Path("site.toml").write_text("[storage]\nuse = 'folder'\npath = 'pages'\n")
    done = shell.run("doctor", "--conform", "folder", "site.toml", "--json")
    found = json.loads(done.out)
    # It cannot write without room, and tells that by raising, which leaves the page's part behind.
    assert {one["test"] for one in found["failed"]} <= {"test_b083_a_write_without_room_never_becomes_visible"}
    assert found["capabilities"] == ["deletes", "shared"]
    assert "does not claim LISTS" in {one["why"] for one in found["skipped"]}
    assert [path.name for path in Path("pages").iterdir() if not path.suffix] == []


def test_a_storage_that_cannot_be_had_is_one_sentence(shell: Shell) -> None:
    away = '        raise ConfigError("storage.url: no well answers")\n'
    broken = FOLDER.replace("import DONE", "import ConfigError, DONE").replace(
        "        self.root.mkdir(parents=True, exist_ok=True)\n", away
    )
    assert away in broken
    shell.install("folder", broken)
    done = shell.run("doctor", "--conform", "folder")
    assert (done.code, done.out, done.err) == (2, "", "Error: storage.url: no well answers\n")


def test_what_the_runner_chooses_has_its_settings_there(shell: Shell) -> None:
    module = next(text for path, text in written("balance", "even").items() if path.endswith("__init__.py"))
    shell.install("even", module)
    done = shell.run("doctor", "--conform", "even", "--set", "runner.balance.replicas=2")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("balance 'even' of even (stepwell-even 1.0) conforms; claims tested: none\n")
    for key, sentence in {
        "runner.balance.replcas": "runner.balance.replcas (--set runner.balance.replcas): no such setting; did you ",
        "balance.replicas": "balance (--set balance.replicas): no section of its own; write [runner.balance]",
    }.items():
        done = shell.run("doctor", "--conform", "even", "--set", f"{key}=2")
        assert (done.code, done.out) == (2, "")
        assert done.err.startswith(f"Error: {sentence}")


@pytest.mark.parametrize(("ends", "why"), [("crash", "it ended the process with SIGKILL"), ("hang", "it hung")])
def test_a_kit_that_does_not_come_back_is_a_failure_of_the_test_under_way(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str, why: str
) -> None:
    """And the folder that stood for the `path` which nobody gave is gone all the same."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    shell.install("folder", FOLDER)
    request = {"name": "folder", "kind": "", "config": None, "sets": [f"storage.ends={ends}"]}
    outcome = conform.run(request, verbose=False, stuck_s=5)
    assert outcome.failed[-1]["test"] == "test_a_key_may_repeat_in_a_batch"
    assert outcome.failed[-1]["why"].startswith(why)
    assert list((tmp_path / "temporary").iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_a_kit_that_never_ends_ends_with_the_command(shell: Shell) -> None:
    shell.install("folder", FOLDER)
    command = shell.begin("doctor", "--conform", "folder", "--set", "storage.ends=hang")
    children = Path(f"/proc/{command.pid}/task/{command.pid}/children")
    until(lambda: children.read_text().strip() != "")
    kit = Path(f"/proc/{children.read_text().split()[0]}")
    until(lambda: b"stepwell.cli.conformed" in (kit / "cmdline").read_bytes())
    time.sleep(1)  # it has read its request by then
    command.kill()
    command.wait()
    until(lambda: not kit.exists())


def until(true: Callable[[], bool]) -> None:
    for _ in range(400):
        if true():
            return
        time.sleep(0.05)
    pytest.fail("it has not come to that")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--conform", "foldr"), "--conform foldr: nothing installed offers it; did you mean folder?"),
        (("--conform", "sim"), "--conform sim: there is no kit for a runner; there are kits for storage"),
        (("--conform", "folder", "--kind", "sink"), "--kind sink: there is no kit for it; have balance, dispatch"),
        (("--conform", "folder", "--kind", "evict"), "--conform folder: nothing installed offers it; have "),
        (("--conform", "folder", "--set", "storage.pth=/x"), "storage.pth (--set storage.pth): no such setting"),
        (("--conform", "folder", "--set", "storage.use=memory"), "storage.use = 'memory' (--set storage.use) is anoth"),
        (("--conform", "folder", "absent.toml"), "absent.toml"),
        (("--kind", "storage", "x.toml"), "--kind says which offer --conform NAME means"),
        ((), "Missing argument 'CONFIG'"),
    ],
)
def test_wrong_use_is_one_sentence(shell: Shell, arguments: tuple[str, ...], sentence: str) -> None:
    shell.install("folder", FOLDER)
    done = shell.run("doctor", *arguments)
    assert done.code == 2
    assert sentence in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize("kind", [(), ("--kind", "storage")])
@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "well",
            "--conform well: plugin well (stepwell-well 1.0) is broken: import stepwell_well: ModuleNotFoundError",
        ),
        ("depth", "--conform depth: nothing installed offers it; plugin well (stepwell-well 1.0) is broken: import st"),
    ],
)
def test_a_plugin_that_does_not_import_is_what_is_said_first(
    shell: Shell, kind: tuple[str, ...], name: str, sentence: str
) -> None:
    shell.install("well", "import no_such_library")
    done = shell.run("doctor", "--conform", name, *kind)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"Error: {sentence}")


def test_names_are_told_of_the_kind_that_is_asked_for_else_only_a_few(shell: Shell) -> None:
    told = shell.run("doctor", "--conform", "xyz", "--kind", "write").err
    assert told.endswith("nothing installed offers it; have write_back, write_through, write_through_selective\n")
    told = shell.run("doctor", "--conform", "xyz").err
    assert "; have " in told and told.count(", ") == 7 and told.endswith(" more\n")


@pytest.mark.parametrize(
    ("noise", "why"),
    [
        ("", ""),
        ("collected\n.", ""),
        ("....F..s   [ 50%]", ""),
        ("---", ""),
        ("no more room\n", " (no more room)"),
        ("0x1f", " (0x1f)"),
    ],
)
def test_an_end_is_told_with_what_was_said_last_if_that_says_anything(noise: str, why: str) -> None:
    assert ending(-15, noise) == f"it ended the process with SIGTERM{why}"


def test_a_name_of_two_kinds_has_to_be_told_apart(shell: Shell) -> None:
    shell.install("folder", FOLDER + SCHEDULES.replace('"fair"', '"folder"'))
    done = shell.run("doctor", "--conform", "folder")
    assert (done.code, done.out) == (2, "")
    assert "--conform folder: there is a storage and a schedule of that name; choose with --kind" in done.err


def test_without_the_kits_it_says_what_to_install(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conform, "find_spec", lambda name: None)
    done = shell.run("doctor", "--conform", "memory")
    assert done.code == 2
    assert "pip install stepwell-testkit" in done.err
