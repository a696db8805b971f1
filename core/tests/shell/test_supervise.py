"""Children that fail in every way they can, and none of them outlives its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stepwell.engine.supervise import Child, ChildFailed, Supervisor
from stepwell.errors import ConfigError

CHILD = str(Path(__file__).with_name("child.py"))


def child(what: str, log: Path | None = None, *, restart: bool = True, name: str = "child") -> Child:
    argv = [sys.executable, CHILD, what, *(["--log", str(log)] if log else [])]
    return Child(name, argv, restart=restart, again=["--again"])


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def until(condition: Callable[[], bool], within_s: float = 15.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.02)


@pytest.fixture
def made() -> Iterator[list[Supervisor]]:
    supervisors: list[Supervisor] = []
    yield supervisors
    for supervisor in supervisors:
        supervisor.stop()


def test_children_start_in_order_and_end_in_reverse(tmp_path: Path, made: list[Supervisor]) -> None:
    log = tmp_path / "log"
    supervisor = Supervisor([child("serve", log, name="engine"), child("serve", log, name="front")])
    made.append(supervisor)
    supervisor.start()
    engine, front = supervisor.pid("engine"), supervisor.pid("front")
    supervisor.stop()
    lines = log.read_text().split("\n")[:-1]
    assert lines == [f"started {engine}", f"started {front}", f"ended {front}", f"ended {engine}"]
    assert gone(engine) and gone(front)


def test_a_mistake_of_the_user_is_one_sentence(made: list[Supervisor]) -> None:
    supervisor = Supervisor([child("config")])
    made.append(supervisor)
    with pytest.raises(ConfigError, match=r"^runner\.use = 'x' \(site\.toml:3\): nothing offers it$"):
        supervisor.start()


def test_other_failed_starts_say_who_and_why(made: list[Supervisor]) -> None:
    for what, sentence in (
        ("fault", "child: RuntimeError: the device is on fire"),
        ("mute", "child ended with status 3 before it was ready"),
    ):
        supervisor = Supervisor([child(what)])
        made.append(supervisor)
        with pytest.raises(ChildFailed, match=sentence):
            supervisor.start()
    with pytest.raises(ChildFailed, match="cannot be started"):
        Supervisor([Child("nobody", ["/no/such/program"])]).start()


def test_a_failed_start_takes_those_before_it_along(tmp_path: Path) -> None:
    supervisor = Supervisor([child("serve", tmp_path / "log"), child("mute")])
    with pytest.raises(ChildFailed):
        supervisor.start()
    pid = int((tmp_path / "log").read_text().split()[1])
    assert gone(pid)


def test_a_start_that_takes_too_long_is_given_up() -> None:
    supervisor = Supervisor([child("slow")], start_s=1.0, grace_s=5.0)
    with pytest.raises(ChildFailed, match="not ready within 1 s"):
        supervisor.start()


def test_a_killed_child_is_started_again(made: list[Supervisor]) -> None:
    supervisor = Supervisor([child("serve")])
    made.append(supervisor)
    supervisor.start()
    first = supervisor.pid("child")
    os.kill(first, signal.SIGKILL)
    until(lambda: (supervisor.watch(0.05), supervisor.restarted)[1] == 1)
    assert supervisor.pid("child") != first and not gone(supervisor.pid("child"))


def test_a_child_that_must_not_be_restarted_ends_all(made: list[Supervisor]) -> None:
    supervisor = Supervisor([child("serve", name="front"), child("once", restart=False, name="engine")])
    made.append(supervisor)
    supervisor.start()
    front = supervisor.pid("front")
    with pytest.raises(ChildFailed, match="engine ended with status 5"):
        until(lambda: supervisor.watch(0.05) is not None)
    supervisor.stop()
    assert gone(front)


def test_a_child_knows_that_it_ran_before(tmp_path: Path, made: list[Supervisor]) -> None:
    log = tmp_path / "log"
    supervisor = Supervisor([child("once", log)])
    made.append(supervisor)
    supervisor.start()
    until(lambda: (supervisor.watch(0.05), supervisor.restarted)[1] == 1)
    assert [line.split()[0] for line in log.read_text().splitlines()[:2]] == ["started", "again"]


def test_one_that_is_slow_to_come_back_holds_no_other_up(made: list[Supervisor]) -> None:
    """Nor the end of all."""
    supervisor = Supervisor([child("slow again", name="slow"), child("serve", name="other")], start_s=20, grace_s=1)
    made.append(supervisor)
    supervisor.start()
    slow = supervisor.pid("slow")
    os.kill(slow, signal.SIGKILL)
    until(lambda: (supervisor.watch(0.05), supervisor.pid("slow") != slow)[1])
    first = supervisor.pid("other")
    os.kill(first, signal.SIGKILL)
    until(lambda: (supervisor.watch(0.05), supervisor.restarted)[1] == 1, 10)
    assert supervisor.pid("other") != first and not gone(supervisor.pid("other"))
    assert not gone(supervisor.pid("slow"))


def test_one_that_fails_to_come_back_is_tried_again(tmp_path: Path, made: list[Supervisor]) -> None:
    supervisor = Supervisor([child("slow again")], start_s=4, restarts=1)
    made.append(supervisor)
    supervisor.start()
    os.kill(supervisor.pid("child"), signal.SIGKILL)
    with pytest.raises(ChildFailed, match=r"failed again \(child was not ready within 4 s\) and was restarted 1 times"):
        until(lambda: supervisor.watch(0.05) is not None)


def test_restarts_are_bounded(made: list[Supervisor]) -> None:
    supervisor = Supervisor([child("once")], restarts=2)
    made.append(supervisor)
    supervisor.start()
    with pytest.raises(ChildFailed, match="was restarted 2 times in 60 s"):
        until(lambda: supervisor.watch(0.05) is not None, 30)
    assert supervisor.restarted == 2


def test_a_child_that_does_not_end_is_killed(made: list[Supervisor]) -> None:
    supervisor = Supervisor([child("stubborn")], grace_s=0.3)
    made.append(supervisor)
    supervisor.start()
    pid = supervisor.pid("child")
    supervisor.stop()
    assert gone(pid)


def test_a_second_request_to_stop_does_not_wait() -> None:
    supervisor = Supervisor([child("stubborn")], grace_s=60)
    begin = time.monotonic()
    threading.Timer(1.5, supervisor.request_stop, ["first"]).start()
    threading.Timer(2.0, supervisor.request_stop, ["second"]).start()
    assert supervisor.run() == 0
    assert time.monotonic() - begin < 20


def test_children_die_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    program = (
        "import sys\nfrom stepwell.engine.supervise import Child, Supervisor\n"
        f"Supervisor([Child('c', [sys.executable, {CHILD!r}, 'stubborn', '--log', {str(tmp_path / 'log')!r}])]).run()\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program])
    until(lambda: (tmp_path / "log").exists() and bool((tmp_path / "log").read_text()))
    pid = int((tmp_path / "log").read_text().split()[1])
    assert not gone(pid)
    parent.kill()
    parent.wait()
    until(lambda: gone(pid))


def test_a_signal_ends_all_in_peace(tmp_path: Path) -> None:
    log = tmp_path / "log"
    program = (
        "import sys\nfrom stepwell.engine.supervise import Child, Supervisor\n"
        f"sys.exit(Supervisor([Child('c', [sys.executable, {CHILD!r}, 'serve', '--log', {str(log)!r}])]).run())\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program])
    until(lambda: log.exists() and bool(log.read_text()))
    time.sleep(0.3)
    parent.terminate()
    assert parent.wait(15) == 0
    assert "ended" in log.read_text()
