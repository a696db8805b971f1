"""Pieces of work in processes of their own."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from stepwell.errors import ConfigError, StepwellError
from stepwell.replay.parallel import Ended, Follow, Lost, Moved, each

Piece = Callable[[], int]


def _work(piece: Piece, follow: Follow) -> int:
    return piece()


def _results(pieces: list[tuple[str, Piece]], jobs: int = 2) -> dict[int, int]:
    return {event.number: event.result for event in each(_work, pieces, jobs) if isinstance(event, Ended)}


def test_every_piece_is_done_in_a_process_of_its_own() -> None:
    found = _results([(str(number), os.getpid) for number in range(4)])
    assert sorted(found) == [0, 1, 2, 3]
    assert len({os.getpid(), *found.values()}) == 5


def test_no_more_run_at_a_time_than_asked() -> None:
    running, most = set(), 0
    for event in each(_work, [("x", lambda: 1)] * 5, 2):
        if isinstance(event, Moved):
            running.add(event.number)
        else:
            running.discard(event.number)
        most = max(most, len(running))
    assert most == 2


def test_how_far_a_piece_is_can_be_followed() -> None:
    def half(piece: Piece, follow: Follow) -> int:
        follow(lambda: 0.5)
        time.sleep(1.2)
        return 1

    shares = [event.share for event in each(half, [("x", lambda: 1)], 1) if isinstance(event, Moved)]
    assert shares[0] == 0.0
    assert 0.5 in shares


def test_a_process_that_is_killed_names_its_piece_and_ends_the_others(tmp_path: Path) -> None:
    def kill() -> int:
        os.kill(os.getpid(), signal.SIGKILL)
        return 0

    def sleep() -> int:
        (tmp_path / "pid").write_text(str(os.getpid()))
        time.sleep(60)
        return 0

    begin = time.monotonic()
    with pytest.raises(Lost, match="lpm device_pages=64: its process was killed by SIGKILL"):
        _results([("fcfs", sleep), ("lpm device_pages=64", kill)])
    assert time.monotonic() - begin < 20
    pid = tmp_path / "pid"
    if pid.exists():  # it may not have come so far
        assert not Path(f"/proc/{pid.read_text()}").exists()


def test_a_process_that_leaves_without_a_result_is_told_apart() -> None:
    def leave() -> int:
        os._exit(3)

    with pytest.raises(Lost, match="x: its process ended with status 3 and no result"):
        _results([("x", leave)])


@pytest.mark.parametrize("kind", [ConfigError, StepwellError])
def test_what_a_piece_says_comes_with_its_name(kind: type[StepwellError]) -> None:
    def fail() -> int:
        raise kind("cache.device_pages: is too small")

    with pytest.raises(StepwellError, match=r"^lpm: cache\.device_pages: is too small$") as raised:
        _results([("lpm", fail)])
    assert isinstance(raised.value, ConfigError) == (kind is ConfigError)


def test_a_defect_comes_with_its_traceback() -> None:
    def fail() -> int:
        raise KeyError("page")

    with pytest.raises(RuntimeError, match=r"(?s)^lpm failed in its process:.*in fail.*KeyError: 'page'"):
        _results([("lpm", fail)])


def test_who_stops_listening_ends_the_children(tmp_path: Path) -> None:
    def sleep() -> int:
        (tmp_path / str(os.getpid())).touch()
        time.sleep(60)
        return 0

    with closing(each(_work, [("a", sleep), ("b", sleep)], 2)) as events:
        while len(list(tmp_path.iterdir())) < 2:
            next(events)
    assert not [path for path in tmp_path.iterdir() if Path(f"/proc/{path.name}").exists()]
