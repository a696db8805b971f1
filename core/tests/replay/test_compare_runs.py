"""`stepwell replay --compare` and `--sweep` on small traces."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from stepwell.cli import root

from .conftest import SMALL, conversations, refused, replay, write

POLICIES = """
import os, signal, time
from dataclasses import dataclass
from stepwell import Offer, SchedulePolicy, hookimpl

@dataclass(frozen=True)
class Config:
    least: int = 0
    def __post_init__(self):
        if self.least < 0:
            raise ValueError(f"least: {self.least} is less than 0")

@dataclass(frozen=True)
class Nothing:
    pass

class Longest(SchedulePolicy):
    def __init__(self, config, context):
        self.least = config.least
    def order(self, waiting, view):
        return sorted(waiting, key=lambda one: -one.length if one.length >= self.least else 0)

class Killed(SchedulePolicy):
    def __init__(self, config, context): pass
    def order(self, waiting, view):
        os.kill(os.getpid(), signal.SIGKILL)

class Endless(SchedulePolicy):
    def __init__(self, config, context): pass
    def order(self, waiting, view):
        print("running", os.getpid(), flush=True)
        time.sleep(60)

@hookimpl
def stepwell_schedulers():
    return [Offer("longest", Longest, Config), Offer("killed", Killed, Nothing), Offer("endless", Endless, Nothing)]
"""
BUSY = (*SMALL, "engine.max_running=2")
UNSIZED = tuple(one for one in BUSY if not one.startswith("cache.device_pages="))


@pytest.fixture
def short(tmp_path: Path) -> Path:
    """Requests that come faster than they can be answered."""
    return write(tmp_path / "short.jsonl", conversations(40, gap_ms=20))


@pytest.fixture(autouse=True)
def orders(fake_dist: Callable[..., Path], alone: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STEPWELL_PLUGINS", "orders")
    return fake_dist("stepwell-orders", {"stepwell_orders": POLICIES}, {"stepwell.v1": {"orders": "stepwell_orders"}})


def test_a_combination_says_what_it_says_alone(short: Path) -> None:
    found = replay(
        short,
        "--compare",
        "fcfs,longest:least=2000",
        "--sweep",
        "cache.device_pages=40,80",
        "--jobs",
        "2",
        sets=UNSIZED,
    )
    assert [one["name"] for one in found["combinations"]] == [
        "fcfs device_pages=40",
        "longest:least=2000 device_pages=40",
        "fcfs device_pages=80",
        "longest:least=2000 device_pages=80",
    ]
    for one in found["combinations"]:
        alone = replay(short, sets=(*BUSY, *(f"{key}={value}" for key, value in one["settings"].items())))
        assert _steady(one["result"]) == _steady(alone), one["name"]
    first, second = found["combinations"][:2]
    assert first["result"]["ttft_s"] != second["result"]["ttft_s"]
    mean = second["result"]["ttft_s"]["mean"] / first["result"]["ttft_s"]["mean"]
    assert second["ratios"]["ttft_mean"] == pytest.approx(mean, rel=1e-3)
    assert set(first["ratios"].values()) <= {1.0, None}


def test_the_number_of_processes_changes_nothing(short: Path) -> None:
    ran = [
        replay(short, "--compare", "fcfs,longest", "--sweep", "speed=1,4", "--jobs", jobs, sets=BUSY)
        for jobs in ("1", "3")
    ]
    for one in ran:
        for entry in one["combinations"]:
            entry["result"] = _steady(entry["result"])
    assert ran[0] == ran[1]


def test_a_swept_speed_is_that_of_the_option(short: Path) -> None:
    found = replay(short, "--sweep", "speed=1,4", sets=BUSY)
    fast = replay(short, "--speed", "4", sets=BUSY)
    assert found["combinations"][1]["settings"] == {"speed": 4}
    assert _steady(found["combinations"][1]["result"]) == _steady(fast)


def test_sizes_can_be_swept_with_time_taken_out(short: Path) -> None:
    found = replay(short, "--instant", "--sweep", "cache.device_pages=20,60")
    for one in found["combinations"]:
        alone = replay(short, "--instant", sets=(f"cache.device_pages={one['settings']['cache.device_pages']}",))
        assert one["result"]["all"] == alone["all"]
    assert found["combinations"][1]["ratios"]["hit_share"] > 1


def test_settings_of_one_policy_are_left_out_for_the_others(short: Path, tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text('[schedule]\nuse = "longest"\nleast = 2000\n')
    found = replay(short, "--compare", "fcfs,longest,longest:least=0", "--config", "site.toml", sets=BUSY)
    own = replay(short, "--config", "site.toml", sets=BUSY)
    results = [_steady(one["result"]) for one in found["combinations"]]
    assert results[1] == _steady(own)
    assert results[0] != results[1] != results[2]
    parts = replay(short, "--ablate", "--config", "site.toml", sets=BUSY)["variants"]
    assert _steady(parts["fcfs"])["ttft_s"] == results[0]["ttft_s"]


def test_a_policy_of_parts_may_be_compared_with_them_in_one_line(short: Path) -> None:
    found = replay(short, "--compare", "longest,choices:order=longest,choices:order.use=longest", sets=BUSY)
    plain, short_form, long_form = (_steady(one["result"]) for one in found["combinations"])
    assert plain["ttft_s"] == short_form["ttft_s"] == long_form["ttft_s"]


def test_what_was_replayed_is_told(short: Path, tmp_path: Path) -> None:
    sets = ("schedule.use=longest", "schedule.least=7", "engine.max_prefill_tokens=4096", *BUSY)
    told = replay(short, "--limit", "9", "--speed", "2", "--html", "page.html", sets=sets)["setup"]
    wanted = {"max_prefill_tokens": 4096, "max_running": 2, "speed": 2.0, "limit": 9, "schedule.least": 7}
    assert {key: told[key] for key in wanted} == wanted
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    for words in ("max prefill tokens 4096, max running 2", "schedule longest", "schedule.least=7, speed 2, limit 9."):
        assert words in page
    told = replay(short, "--sweep", "speed=1,4", "--speed", "1")["combinations"][1]["result"]["setup"]
    assert told["speed"] == 4.0
    assert "limit" not in told
    assert not [key for key in told if "." in key]
    told = replay(short, "--instant", "--limit", "9", sets=["cache.device_pages=8"])["setup"]
    assert told == {"device_pages": 8, "block_tokens": 512, "evict": "lru", "limit": 9}


def test_one_device_is_what_polynomials_are_of(short: Path) -> None:
    assert replay(short, sets=("replay.preset=polynomial", "replay.devices=1"))["setup"]["devices"] == 1
    said = refused(short, "--sweep", "replay.devices=1,2", "--set", "replay.preset=polynomial")
    assert said.startswith("Error: devices=2: replay.devices (argument): the preset polynomial is of one device")


def test_a_policy_without_the_swept_setting_is_one_line_of_the_page(short: Path, tmp_path: Path) -> None:
    found = replay(
        short, "--compare", "fcfs,longest", "--sweep", "schedule.least=0,2000", "--html", "page.html", sets=BUSY
    )
    assert [one["name"] for one in found["combinations"]] == ["fcfs", "longest least=0", "longest least=2000"]
    assert {one["baseline"] for one in found["combinations"]} == {"fcfs"}
    assert (tmp_path / "page.html").is_file()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--compare", "fcfs,longst"], "longst: schedule.use = 'longst' (argument): nothing installed offers it; have"),
        (["--compare", "longest:leest=1,fcfs"], "longest:leest=1: schedule.leest (argument): no such setting; did you"),
        (["--compare", "fcfs,longest:least=-1"], "longest:least=-1: schedule.least (argument): -1 is less than 0"),
        (["--compare", "fcfs,fcfs"], "--compare names fcfs twice"),
        (["--compare", "fcfs", "--ablate"], "--ablate turns parts off"),
        (["--sweep", "cache.device_pages=8,9", "--ablate"], "--ablate turns parts off"),
        (["--compare", "fcfs", "--instant"], "--compare needs time"),
        (["--sweep", "cache.device_pages=64,few"], "device_pages=few: cache.device_pages (argument): 'few' is not"),
        (["--sweep", "cache.device_pgaes=64,65"], "device_pgaes=64: cache.device_pgaes (argument): no such setting"),
        (["--sweep", "nowhere.size=1,2"], "size=1: nowhere (argument): no such section"),
        (["--sweep", "speed=1,2", "--speed", "2"], "both say how fast"),
        (["--instant", "--speed", "2"], "--speed needs time: leave --instant or --speed out"),
        (
            ["--instant", "--sweep", "cache.host_pages=1,2"],
            "--instant knows of the cache only cache.device_pages: leave",
        ),
        (["--instant", "--sweep", "speed=1,2"], "--sweep speed needs time: leave --instant or --sweep speed out"),
        (["--instant", "--sweep", "engine.max_running=1,2"], "--sweep engine.max_running needs time"),
        (["--instant", "--sweep", "schedule.least=1,2"], "--sweep schedule.least needs time"),
        (
            ["--compare", "fcfs,longest:least=2", "--set", "schedule.use=longest"],
            "--compare fcfs,longest:least=2,killed and --set schedule.use both say which policies are replayed",
        ),
        (
            ["--sweep", "cache.device_pages=8,9", "--set", "cache.device_pages=7"],
            "--sweep cache.device_pages and --set cache.device_pages both say what it is: leave one out",
        ),
        (["--sweep", "replay.model=a,b", "--model", "c"], "--sweep replay.model and --model both say what it is"),
        (["--compare", "fcfs", "--set", "schedule.least=3"], "no policy that is compared has such a setting"),
        (
            ["--instant", "--sweep", "cache.device_pages=0,1"],
            "device_pages=0: cache.device_pages (argument): 0 is less",
        ),
        (["--compare", "fcfs,longest", "--html", "no/page.html"], "there is no folder no"),
    ],
)
def test_a_mistake_is_one_sentence_before_any_work(short: Path, options: list[str], words: str) -> None:
    # `killed` would end its process, and say so, if anything were run.
    begins = options if "--compare" not in options or "--instant" in options else [*options, "--compare", "killed"]
    said = refused(short, *begins)
    assert words in said
    assert "SIGKILL" not in said
    assert len(said.splitlines()) == 1


def test_a_child_that_is_killed_is_named(short: Path) -> None:
    said = refused(short, "--compare", "fcfs,killed", "--sweep", "cache.device_pages=64", "--jobs", "1")
    assert said == (
        "Error: killed device_pages=64: its process was killed by SIGKILL; if memory is short, take fewer --jobs"
    )


def test_ctrl_c_ends_the_children_and_says_so(short: Path, orders: Path) -> None:
    command = [sys.executable, "-m", "stepwell", "replay", str(short), "--jobs", "2"]
    environment = _with_path(orders)
    process = subprocess.Popen(
        [*command, "--compare", "endless,fcfs,longest"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        word, pid = process.stdout.readline().split()
        assert word == "running"
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of them
        _, errors = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 130
    assert errors == "interrupted\n"
    assert not Path(f"/proc/{pid}").exists()


def test_children_do_not_outlive_a_parent_that_is_killed(short: Path, orders: Path) -> None:
    command = [sys.executable, "-m", "stepwell", "replay", str(short), "--compare", "endless,fcfs"]
    environment = _with_path(orders)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    child = Path("/proc") / process.stdout.readline().split()[1]
    process.kill()
    process.wait()
    until = time.monotonic() + 20
    while child.exists() and "zombie" not in (child / "status").read_text() and time.monotonic() < until:
        time.sleep(0.05)
    assert not child.exists() or "zombie" in (child / "status").read_text()


def test_the_table_has_columns_where_they_fit_and_rows_where_not(short: Path) -> None:
    asked = ["replay", str(short), "--compare", "fcfs,longest", *(part for one in BUSY for part in ("--set", one))]
    wide = _ran(asked, 200)
    assert "to fcfs: TTFT mean" in wide
    assert "waiting and passes, worst" in wide
    asked = ["replay", str(short), "--compare", "fcfs,longest", *(part for one in UNSIZED for part in ("--set", one))]
    narrow = _ran([*asked, "--sweep", "cache.device_pages=40,80"], 78)
    assert max(map(len, narrow.splitlines())) <= 78
    assert "columns more fit into a wider terminal" in narrow
    assert narrow.count("longest") == 2
    assert narrow.count("x ") >= 4  # ratios
    whole = _ran([*asked, "--sweep", "cache.device_pages=40,80"], 110)
    assert "padding" in whole
    assert "wider terminal" not in whole


def test_long_names_leave_room_for_the_numbers_that_decide(short: Path) -> None:
    long = "choices:order.use=fcfs:victim.use=fcfs:admit.use=fcfs"
    asked = ["replay", str(short), "--compare", f"fcfs,{long}", *(part for one in UNSIZED for part in ("--set", one))]
    for more in ((), ("--sweep", "cache.device_pages=40,80")):
        narrow = _ran([*asked, *more], 80)
        assert max(map(len, narrow.splitlines())) <= 80
        assert "…" not in narrow
        assert ":admit.use=fcfs" in narrow
        assert "p99" in narrow


def test_json_is_all_that_is_printed(short: Path) -> None:
    ran = CliRunner().invoke(root, ["replay", str(short), "--json", "--compare", "fcfs", "--html", "page.html"])
    assert ran.exit_code == 0
    assert json.loads(ran.output)["compared"] == ["fcfs"]


def _with_path(folder: Path) -> dict[str, str]:
    """The environment in which a process finds what `fake_dist` made."""
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def _ran(arguments: list[str], columns: int) -> str:
    ran = CliRunner().invoke(root, arguments, env={"COLUMNS": str(columns)})
    assert ran.exit_code == 0, (ran.output, ran.exception)
    return ran.output


def _steady(result: dict[str, Any]) -> dict[str, Any]:
    """All but the time that it took."""
    return {key: value for key, value in result.items() if key != "wall_s"}
