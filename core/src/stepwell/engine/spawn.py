"""How an engine starts a process for a piece: told by a socket pair what to make, ended with its parent, heard in logs.

What is to be made travels pickled, and so only to a process that this one started on this machine.
"""

from __future__ import annotations

import logging
import os
import pickle
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import IO

import msgspec

from stepwell.config import Chosen
from stepwell.engine.making import Place, where
from stepwell.engine.spawned import LOG_MARK, LOG_NEWLINE, PlaceText, Recipe, Start
from stepwell.errors import PluginError, StepwellError

MOST_LINES = 200
"""Of what a process prints, a second."""


def recipe_of(choice: Chosen, place: Place, advice: str) -> bytes:
    """What a process needs to make the chosen piece. PluginError, ending with `advice`, where it cannot travel."""
    text = text_of(place)
    try:
        return pickle.dumps(Recipe(choice.offer.make, choice.settings, text, where(choice)))
    except Exception as error:
        raise PluginError(
            f"{where(choice)} cannot run in a process of its own, since its factory or settings have no name there "
            f"({error}): {advice}"
        ) from None


def text_of(place: Place) -> PlaceText:
    """A place as it travels."""
    folder, no_folder = None, ""
    try:
        folder = place.folder()
    except StepwellError as error:
        no_folder = str(error)
    ranks = place.rank, place.world, place.meet
    return PlaceText(place.name, place.device, *ranks, place.group, place.groups, place.commons, folder, no_folder)


def start_of(recipe: bytes) -> bytes:
    """What a process is told first; `spawned.begin` reads it."""
    level = logging.getLogger("stepwell").getEffectiveLevel()
    return msgspec.msgpack.encode(Start(list(sys.path), level, recipe))


def spawn(
    module: str, who: str, logger: str, *, fds: Sequence[int] = (), env: Mapping[str, str] | None = None
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start `python -m module`; it ends with the thread that does this. Answers it and the socket to it.

    What it logs and prints goes to this process's log. PluginError, beginning with `who`, where it cannot be started.
    """
    mine, theirs = socket.socketpair()
    argv = [sys.executable, "-P", "-m", module, "--fd", str(theirs.fileno()), "--parent", str(os.getpid())]
    try:
        # A session of its own: Ctrl-C reaches the engine alone, which then ends this in order.
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(theirs.fileno(), *fds),
            env=env,
            start_new_session=True,
        )
    except OSError as error:
        mine.close()
        raise PluginError(f"{who} cannot have a process of its own: {error}") from None
    finally:
        theirs.close()
    assert process.stdout is not None
    threading.Thread(target=_listen, args=(logger, process.stdout), daemon=True, name="stepwell.logs").start()
    return process, mine


def _listen(name: str, output: IO[bytes]) -> None:
    """Pass on what a process logs and prints, though not a flood of it."""
    plain = logging.getLogger(f"stepwell.{name}")
    second, lines = 0, 0
    with output:
        for raw in output:
            now = int(time.monotonic())
            second, lines = (now, 1) if now != second else (second, lines + 1)
            if lines > MOST_LINES:
                continue
            printed, mark, record = raw.decode(errors="replace").rstrip("\n").partition(LOG_MARK)
            if printed:
                plain.info("%s", printed)
            if mark:
                level, logger, text = record.split(" ", 2)
                logging.getLogger(logger).log(int(level), "%s", text.replace(LOG_NEWLINE, "\n"))
