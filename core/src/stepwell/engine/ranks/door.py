"""How ranks that somebody else started find the engine, over TCP, and how either knows the other.

Both prove that they know `ranks.secret`, each over a number that the other drew; neither sends it. What follows is as
open as the ranks' own collectives are: it belongs in a network of its own. Nothing that comes is unpickled.
"""

from __future__ import annotations

import hmac
import logging
import secrets
import socket
import struct
import time
from contextlib import suppress

import msgspec

from stepwell.config import Chosen, Launched
from stepwell.engine.ranks.link import Link
from stepwell.engine.ranks.wire import Stream, Word
from stepwell.errors import ConfigError, PluginError
from stepwell.offers import Part, vars_of
from stepwell.settings import RankSettings

NONCE = 32
GREETING = struct.Struct("<II32s32s")
"""Rank, pid, the rank's number, and its proof."""
OWN = ("device", "threads", "model")
"""Settings of a runner that are each host's own; that models are the same is told by their fingerprints."""
GREET_S = 5.0
AGAIN_S = 0.2


class Joined(msgspec.Struct, frozen=True, array_like=True):
    """What a rank is told that was let in."""

    world: int
    meet: str
    runner: dict[str, str] = {}
    """What the engine's config says of the runner, as `alike` tells it."""


def proof(secret: str, who: str, *parts: bytes) -> bytes:
    """What only somebody who knows the secret can say."""
    return hmac.digest(secret.encode(), who.encode() + b"\0" + b"".join(parts), "sha256")


def door_port(ranks: RankSettings, told: Launched) -> int:
    """The port of the engine. ConfigError where nothing says it."""
    if not ranks.port and told.port is None:
        raise ConfigError("ranks.port is not set, and neither is $MASTER_PORT to take the next of")
    return ranks.port or (told.port or 0) + 1


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
        self._ranks, self._runner = ranks, alike(choice)
        port = door_port(ranks, told)
        self._log = logging.getLogger("stepwell.ranks")
        self.meet = f"tcp://{told.address or ranks.listen}:{told.port or port - 1}"
        try:
            self._socket = socket.create_server((ranks.listen, port))
        except OSError as error:
            raise ConfigError(f"ranks cannot be listened for at {ranks.listen}:{port} ({error.strerror})") from None

    def join(self, links: list[Link]) -> list[Link]:
        """These and all ranks that come, in order. Kills them where one does not come in time."""
        came = {link.rank: link for link in links}
        until = time.monotonic() + self._ranks.start_s
        try:
            while len(came) < self._ranks.tp:
                self._socket.settimeout(max(0.01, until - time.monotonic()))
                try:
                    end, (host, *_) = self._socket.accept()
                except TimeoutError:
                    missing = ", ".join(str(rank) for rank in range(self._ranks.tp) if rank not in came)
                    raise PluginError(
                        f"rank {missing} did not come within ranks.start_s = {self._ranks.start_s:g} s: "
                        "start `stepwell rank` for it"
                    ) from None
                if (link := self._greeted(end, host)) is None:
                    continue
                if not 0 < link.rank < self._ranks.tp or link.rank in came:
                    self._log.warning("a rank %d that is not missing came from %s; it was sent away", link.rank, host)
                    link.stream.close()
                    continue
                came[link.rank] = link
                link.stream.say(Word.MAKE, msgspec.msgpack.encode(Joined(self._ranks.tp, self.meet, self._runner)))
        except BaseException:
            for link in came.values():
                link.kill()
            self.close()
            raise
        self.close()
        return [came[rank] for rank in range(self._ranks.tp)]

    def _greeted(self, end: socket.socket, host: str) -> Link | None:
        """The rank that comes, if it knows the secret."""
        mine = secrets.token_bytes(NONCE)
        try:
            end.settimeout(GREET_S)
            end.sendall(mine)
            whole = exactly(end, GREETING.size)
            rank, pid, theirs, said = GREETING.unpack(whole)
            good = hmac.compare_digest(said, proof(self._ranks.secret, "rank", mine, whole[:-32]))
            if good:
                end.sendall(proof(self._ranks.secret, "engine", theirs))
                end.settimeout(None)
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return Link(rank, Stream(end), None, f"pid {pid} at {host}", time.monotonic())
        except (OSError, EOFError):
            good = False
        self._log.warning("something at %s wanted to be a rank and did not know ranks.secret; it was sent away", host)
        end.close()
        return None

    def close(self) -> None:
        """Let nobody in any more."""
        self._socket.close()


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
    try:
        end.settimeout(ranks.start_s)  # it greets one after another
        theirs = exactly(end, NONCE)
        mine = secrets.token_bytes(NONCE)
        head = GREETING.pack(rank, pid, mine, b"")[:-32]
        end.sendall(head + proof(ranks.secret, "rank", theirs, head))
        if not hmac.compare_digest(exactly(end, 32), proof(ranks.secret, "engine", mine)):
            raise EOFError
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
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


def exactly(end: socket.socket, count: int) -> bytes:
    """So many bytes. EOFError where the other end is gone first."""
    whole = b""
    while len(whole) < count:
        if not (more := end.recv(count - len(whole))):
            raise EOFError
        whole += more
    return whole
