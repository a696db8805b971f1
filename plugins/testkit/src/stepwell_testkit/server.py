"""A real server for tests: on free loopback ports, started, killed, frozen and started again on the same ports."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

REQUIRE = "STEPWELL_REQUIRE_SERVERS"
"""An environment variable: where it is set, a server that cannot be had is a failure, not a skipped test."""
START_S = 30.0


PORTS = range(12_000, 32_000)
"""Below those that the system gives to connections by itself: a client that tries a dead server again and again would
be given its port, be connected with itself, and leave the server none to come back to."""


def free_port() -> int:
    """A loopback port that nobody listens on now, and that no client is given by chance."""
    while True:
        port = random.choice(PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def lacking(what: str) -> None:
    """End a test that cannot have its server: skipped, or failed where servers are required."""
    if os.environ.get(REQUIRE):
        pytest.fail(f"{what}, and ${REQUIRE} is set", pytrace=False)
    pytest.skip(what)


def need_program(name: str) -> str:
    """The path of a program that has to be installed."""
    found = shutil.which(name)
    if found is None:
        lacking(f"{name} is not installed")
        raise AssertionError("unreachable")
    return found


def answers(port: int, host: str = "127.0.0.1") -> bool:
    """Whether somebody listens there."""
    with suppress(OSError), socket.create_connection((host, port), 0.5):
        return True
    return False


class Server:
    """One process. `command(ports)` is its command line, given `ports` free ones; `ready(ports)`: it can serve."""

    def __init__(
        self,
        command: Callable[[Sequence[int]], Sequence[str]],
        folder: Path,
        *,
        ports: int = 1,
        ready: Callable[[Sequence[int]], bool] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.ports = tuple(free_port() for _ in range(ports))
        self._command, self._folder = command, folder
        self._ready = ready or (lambda ports: answers(ports[0]))
        self._env = {**os.environ, **(env or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self.log = folder / f"server-{self.ports[0]}.log"

    @property
    def port(self) -> int:
        """The first port."""
        return self.ports[0]

    @property
    def pid(self) -> int:
        """The process id of what runs, or ran last."""
        assert self._process is not None, "it was never started"
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> Self:
        """Start, or start again, and wait until it can serve."""
        assert not self.alive, "it runs already"
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(
                list(self._command(self.ports)),
                cwd=self._folder,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        end = time.monotonic() + START_S
        while not self._ready(self.ports):
            if not self.alive or time.monotonic() > end:
                self.kill()
                pytest.fail(f"the server did not start: {self.log.read_text()[-2000:]}")
            time.sleep(0.02)
        return self

    def kill(self) -> None:
        """End it by SIGKILL, with all its children."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def freeze(self) -> None:
        """Stop it where it stands: it keeps its connections and answers nothing."""
        os.killpg(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen one go on."""
        os.killpg(self.pid, signal.SIGCONT)

    def restart(self) -> None:
        """Kill it and start it again on the same ports."""
        self.kill()
        self.start()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
