"""The door stays open for ranks, whoever else knocks; and it is closed when one that is there already has gone."""

from __future__ import annotations

import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress

import pytest

from stepwell.builtin.sim import SimConfig
from stepwell.coerce import Secret
from stepwell.config import Chosen, Launched
from stepwell.engine.ranks import greet
from stepwell.engine.ranks.door import Door, enter
from stepwell.engine.ranks.link import Link
from stepwell.engine.ranks.wire import MOST_BYTES, Stream, Word
from stepwell.engine.spawned import complaint
from stepwell.errors import ConfigError, PluginError
from stepwell.offers import Offer
from stepwell.settings import RankSettings
from stepwell.sources import Origin

CHOICE = Chosen("runner", Offer("sim", SimConfig, SimConfig), SimConfig(), Origin("a test"))
NOBODY = Launched(None, None, None, "", None)


class Waiting:
    """An engine that waits at its door for one rank more than it has."""

    def __init__(self, start_s: float, links: list[Link]) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = int(free.getsockname()[1])
        self.ranks = RankSettings(tp=2, port=self.port, secret=Secret("abracadabra"), start_s=start_s)
        self._door = Door(CHOICE, self.ranks, NOBODY)
        self._thread = ThreadPoolExecutor(1)
        self.came: Future[list[Link]] = self._thread.submit(self._door.join, links)

    def knock(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port))


@contextmanager
def dribbling(waiting: Waiting, count: int) -> Iterator[None]:
    """Strangers who say a byte now and then."""
    over = threading.Event()
    with ExitStack() as stack:
        ends = [stack.enter_context(waiting.knock()) for _ in range(count)]

        def say() -> None:
            while not over.wait(0.05):
                for end in ends:
                    with suppress(OSError):
                        end.send(b"?")

        thread = threading.Thread(target=say)
        thread.start()
        yield
        over.set()
        thread.join()


@pytest.fixture
def rank0() -> Iterator[Callable[..., tuple[Link, socket.socket]]]:
    """A rank of this machine, a process that holds the other end of a stream; and our own copy of that end."""
    processes = []

    def make(seconds: float) -> tuple[Link, socket.socket]:
        mine, theirs = socket.socketpair()
        process = subprocess.Popen(["sleep", str(seconds)], pass_fds=(theirs.fileno(),))
        processes.append(process)
        return Link(0, Stream(mine), process, f"pid {process.pid}", time.monotonic()), theirs

    yield make
    for process in processes:
        process.kill()
        process.wait()


def test_strangers_who_dribble_hold_no_rank_up(rank0: Callable[..., tuple[Link, socket.socket]]) -> None:
    """More of them than are greeted at once."""
    link, theirs = rank0(60)
    waiting = Waiting(20, [link])
    with dribbling(waiting, greet.MOST_GUESTS + 20):
        began = time.monotonic()
        stream, joined = enter("127.0.0.1", waiting.port, 1, 7, waiting.ranks)
        links = waiting.came.result(5)
        assert time.monotonic() - began < greet.GREET_S / 2
    assert [one.rank for one in links] == [0, 1]
    assert (joined.world, links[1].where) == (2, "pid 7 at 127.0.0.1")
    stream.close()
    theirs.close()


def test_strangers_who_dribble_do_not_put_the_end_off() -> None:
    waiting = Waiting(0.8, [])
    with dribbling(waiting, 3):
        began = time.monotonic()
        with pytest.raises(PluginError, match="rank 0, 1 did not come within"):
            waiting.came.result(5)
        assert time.monotonic() - began < 2


def test_one_greeting_has_one_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not one for each byte."""
    monkeypatch.setattr(greet, "GREET_S", 0.5)
    waiting = Waiting(5, [])
    with waiting.knock() as end:
        end.settimeout(3)
        assert len(greet.exactly(end, greet.NONCE)) == greet.NONCE
        began = time.monotonic()
        with pytest.raises(OSError):
            while True:
                end.send(b"?")
                time.sleep(0.02)
        assert time.monotonic() - began < 2
    with pytest.raises(PluginError):
        waiting.came.result(8)


def test_the_end_of_a_rank_that_is_there_already_ends_the_waiting(
    rank0: Callable[..., tuple[Link, socket.socket]],
) -> None:
    link, theirs = rank0(0.3)
    theirs.close()
    waiting = Waiting(30, [link])
    with pytest.raises(PluginError, match=r"rank 0 \(pid \d+\) ended with status 0 before it was ready"):
        waiting.came.result(5)


def test_what_such_a_rank_said_last_is_why(rank0: Callable[..., tuple[Link, socket.socket]]) -> None:
    link, theirs = rank0(0.3)
    said = Stream(theirs)
    said.say(Word.MADE, b"as one that waits for nobody")
    said.say(Word.FAILED, complaint(ConfigError("there is no such model")))
    theirs.close()
    with pytest.raises(ConfigError, match="rank 0: there is no such model"):
        Waiting(30, [link]).came.result(5)


def test_memory_is_taken_for_what_comes_and_not_for_what_is_announced() -> None:
    mine, theirs = socket.socketpair()
    heard, says = Stream(mine), Stream(theirs)
    theirs.sendall(struct.pack("<IB", MOST_BYTES, Word.DONE))
    assert heard.hear() == []
    assert len(heard._buffer) < 1 << 20
    whole = bytes(range(256)) * 20_000
    mine, theirs = socket.socketpair()
    heard, says = Stream(mine), Stream(theirs)
    thread = threading.Thread(target=says.say, args=(Word.DONE, whole))
    thread.start()
    assert heard.first() == (Word.DONE, whole)
    thread.join()
