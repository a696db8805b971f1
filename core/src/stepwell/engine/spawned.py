"""What a process that an engine starts for a piece is told, and how it speaks: its recipe, its log, its errors."""

from __future__ import annotations

import argparse
import faulthandler
import logging
import os
import pickle
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from stepwell.engine.making import Place, made
from stepwell.engine.supervise import die_with
from stepwell.errors import ConfigError, PluginError

T = TypeVar("T")

LOG_MARK = "\x1f"
LOG_NEWLINE = "\x1e"
_KEPT = (ConfigError, PluginError, NotImplementedError)
"""Errors that arrive as what they are; all others with their name."""


class Start(msgspec.Struct, frozen=True):
    """What a process is told first."""

    path: list[str]
    """Where modules are found."""
    level: int
    """From which log records are wanted."""
    recipe: bytes
    """A pickled Recipe."""


@dataclass(frozen=True, slots=True)
class PlaceText:
    """A Place that can travel."""

    name: str
    device: str
    rank: int
    world: int
    meet: str
    group: int
    groups: int
    commons: str
    folder: Path | None
    no_folder: str
    """Why there is none."""

    def place(self) -> Place:
        """The place again."""
        return Place(
            self.name,
            self.device,
            self._folder,
            rank=self.rank,
            world=self.world,
            meet=self.meet,
            group=self.group,
            groups=self.groups,
            commons=self.commons,
        )

    def _folder(self) -> Path:
        if self.folder is None:
            raise ConfigError(self.no_folder)
        return self.folder


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a piece is made of; all of it has names that lead to the same things in both processes."""

    factory: Callable[..., object]
    settings: object
    place: PlaceText
    where: str
    """As messages name the choice."""

    def make(self, kind: type[T]) -> T:
        """The piece. Raises what making it raises, as `making.make` does."""
        return made(self.factory, self.settings, kind, self.place.place(), self.where)


class ToParent(logging.Handler):
    """Log records as marked lines on the standard error, which the engine reads."""

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record).replace("\n", LOG_NEWLINE)
        whole = f"{LOG_MARK}{record.levelno} {record.name} {text}\n".encode(errors="replace")
        with suppress(OSError):  # nobody reads any more
            os.write(2, whole)


def ours(module: str, arguments: Sequence[str] | None) -> socket.socket:
    """First thing in such a process: the socket to the engine, with which this process ends."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}")
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    options = parser.parse_args(arguments)
    die_with(options.parent)
    faulthandler.enable()
    return socket.socket(fileno=options.fd)


def begin(said: bytes | memoryview) -> Recipe:
    """Look for modules and log as the engine does; answers what to make. Only of what came from the own parent."""
    start = msgspec.msgpack.decode(said, type=Start)
    sys.path[:] = start.path
    logging.basicConfig(level=start.level, format="%(message)s", handlers=[ToParent()])
    recipe = pickle.loads(start.recipe)
    assert isinstance(recipe, Recipe)
    return recipe


def complaint(error: BaseException) -> bytes:
    """An error as it travels."""
    kind = next((kind.__name__ for kind in _KEPT if isinstance(error, kind)), "")
    return msgspec.msgpack.encode((kind, str(error) if kind else f"{type(error).__name__}: {error}"))


def error_of(body: bytes | memoryview, other: type[Exception]) -> Exception:
    """The error again; `other` is what all become that are not ours."""
    name, text = msgspec.msgpack.decode(body, type=tuple[str, str])
    kind = next((kind for kind in _KEPT if kind.__name__ == name), other)
    return kind(text)
