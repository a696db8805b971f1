"""How ranks that somebody else started find the engine, over TCP, and come in until all are there.

What follows a greeting is as open as the ranks' own collectives are: it belongs in a network of its own. Nothing that
comes is unpickled.
"""

from __future__ import annotations

import logging
import select
import socket
import time
from contextlib import suppress

import msgspec

from stepwell.config import Chosen, Launched
from stepwell.engine.ranks.greet import GREET_S, Greeter, know
from stepwell.engine.ranks.link import Link, last_words
from stepwell.engine.ranks.told import check_engine, door_port, host_of
from stepwell.engine.ranks.wire import Stream, Word
from stepwell.errors import ConfigError, PluginError
from stepwell.offers import Part, vars_of
from stepwell.settings import RankSettings

OWN = ("device", "threads", "model")
"""Settings of a runner that are each host's own; that models are the same is told by their fingerprints."""
AGAIN_S = 0.2
TICK_S = 0.25
SHOWN = 60
"""Letters of what is no name of a host."""
GONE = getattr(select, "POLLRDHUP", 0)
"""Where the system tells: that the other end was closed, whatever it still said."""


class Joined(msgspec.Struct, frozen=True, array_like=True):
    """What a rank is told that was let in."""

    world: int
    meet: str
    runner: dict[str, str] = {}
    """What the engine's config says of the runner, as `alike` tells it."""


def alike(choice: Chosen) -> dict[str, str]:
    """What has to be the same of the runner on all ranks, for people and to compare."""
    settings = {name: value for name, value in vars_of(choice.settings).items() if name not in OWN}
    return {"use": choice.offer.name} | {name: _text(value) for name, value in settings.items()}


def _text(value: object) -> str:
    return f"{value.offer.name} {value.settings}" if isinstance(value, Part) else str(value)


def check_alike(choice: Chosen, joined: Joined) -> None:
    """ConfigError for a rank whose runner would be another than the engine's: sums between them would not fit."""
    mine = alike(choice)
    for name in sorted(mine.keys() | joined.runner.keys()):
        here, there = mine.get(name, "not set"), joined.runner.get(name, "not set")
        if here != there:
            raise ConfigError(f"runner.{name} is {here!r} here and {there!r} at the engine: give both one config")


class Door:
    """Where ranks of other hosts come in."""

    def __init__(self, choice: Chosen, ranks: RankSettings, told: Launched) -> None:
        """Listen, for ranks of this runner. ConfigError where that is not possible."""
        check_engine(ranks, told)
        self._ranks, self._runner = ranks, alike(choice)
        port = door_port(ranks, told)
        self._log = logging.getLogger("stepwell.ranks")
        self.meet = f"tcp://{host_of(ranks, told)}:{told.port or port - 1}"
        try:
            self._socket = socket.create_server((ranks.listen, port))
            self._socket.setblocking(False)
        except OSError as error:
            raise ConfigError(f"ranks cannot be listened for at {ranks.listen}:{port} ({error.strerror})") from None
        except UnicodeError:
            raise ConfigError(f"ranks.listen = {shorten(ranks.listen)} is no name of a host") from None

    def join(self, links: list[Link]) -> list[Link]:
        """These and all ranks that come, in order. Kills them where one does not come in time, or ends meanwhile."""
        came = {link.rank: link for link in links}
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        for link in links:
            poll.register(link.stream, GONE)
        greeter = Greeter(self._ranks.secret, poll)
        until = time.monotonic() + self._ranks.start_s
        try:
            while len(came) < self._ranks.tp:
                if time.monotonic() >= until:
                    raise PluginError(self._missing(came))
                for fd, _ in poll.poll(TICK_S * 1000):
                    self._turn(fd, came, greeter, poll)
                greeter.send_late_away(time.monotonic())
        except BaseException:
            for link in came.values():
                link.kill()
            raise
        finally:
            greeter.close()
            self.close()
        return [came[rank] for rank in range(self._ranks.tp)]

    def _turn(self, fd: int, came: dict[int, Link], greeter: Greeter, poll: select.poll) -> None:
        """Something happened: somebody knocks, says something, or has gone."""
        now = time.monotonic()
        if fd == self._socket.fileno():
            with suppress(OSError):  # it changed its mind
                end, (host, *_) = self._socket.accept()
                greeter.admit(end, host, now)
        elif gone := next((link for link in came.values() if link.stream.fileno() == fd), None):
            raise last_words(gone)
        elif (link := greeter.heard(fd, now)) is not None:
            self._let_in(link, came, poll)

    def _let_in(self, link: Link, came: dict[int, Link], poll: select.poll) -> None:
        if not 0 < link.rank < self._ranks.tp or link.rank in came:
            self._log.warning("a rank that is not missing came, %s; it was sent away", link.name)
            link.stream.close()
            return
        came[link.rank] = link
        poll.register(link.stream, GONE)
        with suppress(OSError):  # it is gone, which is the next thing that is seen
            link.stream.say(Word.MAKE, msgspec.msgpack.encode(Joined(self._ranks.tp, self.meet, self._runner)))

    def _missing(self, came: dict[int, Link]) -> str:
        missing = ", ".join(str(rank) for rank in range(self._ranks.tp) if rank not in came)
        return (
            f"rank {missing} did not come within ranks.start_s = {self._ranks.start_s:g} s: "
            "start `stepwell rank` for it"
        )

    def close(self) -> None:
        """Let nobody in any more."""
        self._socket.close()


def shorten(text: str) -> str:
    """A name, or its beginning where nobody wants to read all of it."""
    return repr(text if len(text) <= SHOWN else text[:SHOWN] + "...")


def enter(host: str, port: int, rank: int, pid: int, ranks: RankSettings) -> tuple[Stream, Joined]:
    """Find the engine, waiting for it for `ranks.start_s`. ConfigError where it does not come or knows no secret."""
    until = time.monotonic() + ranks.start_s
    while True:
        try:
            end = socket.create_connection((host, port), GREET_S)
            break
        except OSError as error:
            if time.monotonic() > until:
                raise ConfigError(f"no engine listens for ranks at {host}:{port} ({error})") from None
            time.sleep(AGAIN_S)
        except UnicodeError:
            raise ConfigError(f"$MASTER_ADDR is {shorten(host)}, which is no name of a host") from None
    try:
        end.settimeout(ranks.start_s)  # it may have work to do before it greets
        know(end, rank, pid, ranks.secret)
        stream = Stream(end)
        _, body = stream.first()
        end.settimeout(None)
        return stream, msgspec.msgpack.decode(body, type=Joined)
    except (EOFError, OSError, msgspec.MsgspecError):
        with suppress(OSError):
            end.close()
        raise ConfigError(
            f"the engine at {host}:{port} did not let rank {rank} in: is ranks.secret the same, and the rank free?"
        ) from None
