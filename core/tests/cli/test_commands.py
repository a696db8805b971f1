"""plugins, plugin, doctor, config show: what they print and how they exit."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from stepwell.cli import probe
from stepwell.config import Config

from .conftest import Shell

STORAGE = """
from dataclasses import dataclass
from pathlib import Path
from stepwell import Check, Finding, Offer, hookimpl

@dataclass(frozen=True)
class Config:
    root: Path
    token: str = ""

@hookimpl
def stepwell_storages():
    return [Offer("scratch", print, Config)]

@hookimpl
def stepwell_checks():
    return [Check("disk", lambda: Finding("fail", "the disk is full")), Check("odd", lambda: 1 / 0)]
"""

HANGS = "import time; time.sleep(600)"
ABORTS = "import os, sys; print('illegal instruction', file=sys.stderr, flush=True); os.abort()"
NOISY = "print('{}')\n" + STORAGE

RUNS = "[runner]\nuse = 'sim'\n[cache]\nhost_gib = 0.5\n[storage]\nuse = 'scratch'\nroot = '/tmp/pages'\n"


def test_plugins_as_json(shell: Shell) -> None:
    shell.install("scratch", NOISY)
    shell.install("bad", "raise OSError('lost')")
    records = json.loads(shell.run("plugins", "--json").out)
    bad = next(r for r in records if r["name"] == "bad")
    assert (bad["state"], bad["version"]) == ("broken", "1.0")
    assert next(r for r in records if r["name"] == "scratch")["offers"] == ["storage:scratch"]


def test_plugins_shows_tracebacks_when_asked(shell: Shell) -> None:
    shell.install("bad", "raise OSError('lost')")
    assert "Traceback" not in shell.run("plugins").out
    assert "bad (stepwell-bad 1.0)\nTraceback" in shell.run("plugins", "-v").out


def test_a_plugin_that_aborts_the_process_is_named_and_the_others_are_listed(shell: Shell) -> None:
    shell.install("aborts", ABORTS)
    shell.install("exits", "import os; os._exit(4)")
    shell.install("scratch", STORAGE)
    rows = {line.split()[1]: line for line in shell.run("plugins").out.splitlines()}
    assert rows["aborts"].startswith("broken")
    assert "import stepwell_aborts: it ended the process with SIGABRT (illegal instruction)" in rows["aborts"]
    assert "import stepwell_exits: it ended the process with status 4" in rows["exits"]
    assert "storage:scratch" in rows["scratch"]


def test_a_plugin_that_hangs_is_named(shell: Shell) -> None:
    shell.install("hangs", HANGS)
    shell.install("scratch", STORAGE)
    config = Config.load(None, {"STEPWELL_PLUGINS": "hangs scratch"})
    records, _ = probe.survey("", {}, config, timeout_s=3)
    found = {record.name: record for record in records}
    assert found["hangs"].reason == "import stepwell_hangs: it did not finish within 3 s"
    assert found["scratch"].state == "ok"


def test_no_plugin_is_imported_into_the_process_that_lists_them(shell: Shell) -> None:
    shell.install("scratch", STORAGE)
    shell.run("plugins")
    Path("site.toml").write_text(RUNS)
    shell.run("doctor", "site.toml")
    assert "stepwell_scratch" not in sys.modules


def test_b141_a_plugin_that_breaks_everything_can_be_switched_off(shell: Shell, tmp_path: Path) -> None:
    shell.install("bad", ABORTS)
    Path("site.toml").write_text("[runner]\nuse = 'sim'\n[bad]\nanything = 1\n")
    done = shell.process("plugin", "disable", "bad")
    assert (done.code, done.err) == (0, "")
    assert (tmp_path / "stepwell" / "disabled").read_text() == "bad\n"
    assert listed(shell, "bad") == ["disabled", "bad", "stepwell-bad", "1.0", "by name"]
    found = shell.process("doctor", "site.toml")
    assert found.code == 0
    assert "warn  [bad] (site.toml:3) is ignored: plugin bad (stepwell-bad 1.0) is disabled: by name" in found.out
    shown = shell.process("config", "show", "site.toml")
    assert shown.code == 0
    assert "[bad]\nanything = 1" in shown.out
    assert "note: [bad] (site.toml:3) is ignored" in shown.err
    assert shell.process("plugin", "enable", "bad").code == 0
    assert listed(shell, "bad")[0] == "broken"


def listed(shell: Shell, name: str) -> list[str]:
    """The line of a plugin, whatever else is installed."""
    lines = [line.split(maxsplit=4) for line in shell.process("plugins").out.splitlines()]
    return next(words for words in lines if words[1:2] == [name])


def test_b141_disable_and_enable_say_what_they_cannot_do(shell: Shell) -> None:
    shell.install("good", STORAGE)
    assert shell.run("plugin", "disable", "goood").err.startswith("Error: goood: no such plugin is installed; did you")
    assert shell.run("plugin", "disable", "builtin").code == 2
    assert "is not switched off" in shell.run("plugin", "enable", "good").err
    assert shell.run("plugin", "disable", "stepwell-good").code == 0
    assert shell.run("plugin", "disable", "good").code == 0
    assert shell.run("plugin", "enable", "good").code == 0
    good = next(line for line in shell.run("plugins").out.splitlines() if line.split()[1:2] == ["good"])
    assert good.startswith("disabled")
    assert "stepwell_good" not in sys.modules


def test_doctor_says_ok_for_what_runs(shell: Shell) -> None:
    shell.install("scratch", STORAGE)
    Path("site.toml").write_text(RUNS)
    found = shell.run("doctor", "site.toml", "--json")
    answer = json.loads(found.out)
    texts = {line["text"]: line["level"] for line in answer["findings"]}
    assert texts["storage.use = 'scratch' (site.toml:6): scratch (stepwell-scratch 1.0)"] == "ok"
    assert texts["scratch disk: the disk is full"] == "fail", "a check of a plugin that the config uses counts"
    assert texts["scratch odd: the check itself failed: ZeroDivisionError: division by zero"] == "fail"
    assert (found.code, answer["runs"]) == (1, False)


def test_doctor_of_a_config_that_does_not_use_the_failing_plugin(shell: Shell) -> None:
    shell.install("scratch", STORAGE)
    shell.install("nixl", "import nixl_library")
    Path("site.toml").write_text("[runner]\nuse = 'sim'\n")
    found = shell.run("doctor", "site.toml")
    assert found.code == 0
    assert "warn  scratch disk: the disk is full" in found.out
    assert "warn  plugin nixl (stepwell-nixl 1.0) is broken: import stepwell_nixl: ModuleNotFoundError" in found.out
    assert "Traceback" not in found.out
    assert "Traceback" in shell.run("doctor", "-v", "site.toml").out
    assert shell.run("doctor", "--strict", "site.toml").code == 1


@pytest.mark.parametrize(
    ("toml", "text"),
    [
        ("[storage]\nuse = 'nixl'", "FAIL  [storage] (site.toml:1) has no effect without a host tier"),
        (
            "[cache]\nhost_gib = 0.5\n[storage]\nuse = 'nixl'",
            "FAIL  storage.use = 'nixl' (site.toml:4): plugin nixl (stepwell-nixl 1.0) is broken: import stepwell_nixl",
        ),
        ("[cache]\npage_sise = 1", "FAIL  cache.page_sise (site.toml:2): no such setting; did you mean page_size?"),
        ("[cache", "FAIL  site.toml:1: "),
        ("[cahce]\nx = 1", "FAIL  cahce (site.toml:1): no such section; did you mean cache?"),
    ],
)
def test_doctor_exits_with_1_where_the_config_cannot_run(shell: Shell, toml: str, text: str) -> None:
    shell.install("nixl", "import nixl_library")
    Path("site.toml").write_text(toml)
    found = shell.run("doctor", "site.toml", "--set", "runner.use=sim")
    assert found.code == 1
    assert text in found.out
    answer = json.loads(shell.run("doctor", "site.toml", "--json", "--set", "runner.use=sim").out)
    assert answer["runs"] is False


def test_doctor_survives_a_plugin_that_kills_the_process(shell: Shell) -> None:
    shell.install("aborts", ABORTS)
    Path("site.toml").write_text("[runner]\nuse = 'sim'\n")
    found = shell.run("doctor", "site.toml")
    assert found.code == 0
    assert (
        "warn  plugin aborts (stepwell-aborts 1.0) is broken: import stepwell_aborts: it ended the process" in found.out
    )


def test_config_show_prints_every_value_with_its_origin(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    shell.install("scratch", STORAGE)
    monkeypatch.setenv("STEPWELL_CACHE__PAGE_SIZE", "32")
    monkeypatch.setenv("PASSWORD", "s3cr3t")
    Path("site.toml").write_text(RUNS + 'token = { env = "PASSWORD" }\n')
    shown = shell.run("config", "show", "site.toml", "--set", "engine.chunk=100")
    assert shown.code == 0
    lines = [" ".join(line.split()) for line in shown.out.splitlines()]
    for line in (
        "page_size = 32 # $STEPWELL_CACHE__PAGE_SIZE",
        "host_gib = 0.5 # site.toml:4",
        "chunk = 128 # --set engine.chunk",
        "max_running = 64 # default",
        "use = 'scratch' # site.toml:6",
        'token = { env = "PASSWORD" } # site.toml:8',
        "use = 'lru' # default",
    ):
        assert line in lines
    assert "s3cr3t" not in shown.out
    assert "note: engine.chunk: 100 is not a multiple of cache.page_size = 32; 128 is used" in shown.err
    as_json = json.loads(shell.run("config", "show", "site.toml", "--json").out)
    assert {"section": "cache", "key": "host_gib", "value": "0.5", "origin": "site.toml:4"} in as_json


def test_config_show_of_a_mistaken_config_shows_it_and_says_the_mistake(shell: Shell) -> None:
    Path("site.toml").write_text("[cache]\npage_sise = 3\n")
    shown = shell.run("config", "show", "site.toml")
    assert shown.code == 2
    assert "page_sise = 3  # site.toml:2" in shown.out
    assert shown.err == "Error: cache.page_sise (site.toml:2): no such setting; did you mean page_size?\n"


def test_config_show_without_a_config_shows_the_defaults(shell: Shell) -> None:
    shown = shell.run("config", "show")
    assert shown.code == 0
    assert "page_size = 16" in shown.out
