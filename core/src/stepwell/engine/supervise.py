"""Child processes: start them in order, notice when one dies, restart it or stop, leave none behind.

A child says over a pipe that it can serve, or in one sentence why it cannot; a child that dies silently is told from
that by the pipe's end. The other way round, a child ends when its parent does, however that went.
"""

from __future__ import annotations

import ctypes
import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import zip_longest
from types import FrameType

import msgspec

from stepwell.errors import ConfigError, StepwellError

PR_SET_PDEATHSIG = 1


class ChildFailed(StepwellError):
    """A child ended, or could not start, and is not to be started again."""


# --- in the child ------------------------------------------------------------------------------------------------


class Report(msgspec.Struct, frozen=True):
    """What a child says once: nothing where it can serve, else why not."""

    error: str | None = None
    config: bool = False
    """The user has to mend something; a restart cannot help."""


class Lifeline:
    """A child's end of the pipe to its parent."""

    def __init__(self, fd: int, parent: int) -> None:
        """Tie this process to its parent; made first thing in the child. `fd` -1: nobody waits for a report."""
        self._fd = fd
        if parent:
            die_with(parent)

    def ready(self) -> None:
        """Say that this process can serve."""
        self._say(Report())

    def failed(self, error: Exception) -> int:
        """Say why it cannot, and answer the exit status to end with."""
        config = isinstance(error, ConfigError)
        text = str(error) if isinstance(error, StepwellError) else f"{type(error).__name__}: {error}"
        self._say(Report(text, config))
        return 2 if config else 1

    def _say(self, report: Report) -> None:
        if self._fd < 0:
            return
        with os.fdopen(self._fd, "wb") as pipe:
            pipe.write(msgspec.json.encode(report))
        self._fd = -1


def die_with(parent: int) -> None:
    """Have this process killed when the process `parent`, its parent, ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    else:
        threading.Thread(target=_outlive_not, args=(parent,), daemon=True, name="parent").start()
    if os.getppid() != parent:  # it ended before we asked
        os.kill(os.getpid(), signal.SIGKILL)


def _outlive_not(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)


# --- in the parent -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Child:
    """A process to keep: `argv` gets `--ready-fd N --parent PID` appended, for a Lifeline."""

    name: str
    argv: Sequence[str]
    restart: bool = True
    """Start it again when it dies; otherwise its end is the end of all."""
    env: Mapping[str, str] | None = None
    fds: Sequence[int] = ()
    """Descriptors that it inherits under the same numbers, such as a socket that outlives it."""
    again: Sequence[str] = ()
    """Arguments more where it is started once more."""
    beside: bool = False
    """Start it beside those before it that are so as well, not after they can serve."""


@dataclass
class _Running:
    child: Child
    process: subprocess.Popen[bytes]
    report: int
    """Where it says whether it can serve; -1 once it has."""
    starts: list[float] = field(default_factory=list)
    said: bytes = b""
    due: float | None = None
    """When to start it again, where it has ended."""


class Supervisor:
    """Keeps children running. All calls from one thread, the main one; children end when that thread does."""

    def __init__(
        self,
        children: Sequence[Child],
        *,
        start_s: float = 900.0,
        grace_s: float = 30.0,
        restarts: int = 5,
        window_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`start_s`: until a child must be ready; `grace_s`: to end in peace; `restarts`: at most, in `window_s`."""
        self._children = tuple(children)
        self._start_s, self._grace_s = start_s, grace_s
        self._restarts, self._window_s = restarts, window_s
        self._clock = clock
        self._log = logging.getLogger("stepwell.supervisor")
        self._running: list[_Running] = []
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        self._stop: str | None = None
        self._hurry = False
        self.restarted = 0
        """Restarts so far after which a child could serve again."""

    def run(self) -> int:
        """Start all, watch until a signal or a death that ends it, stop all. Answers the exit status.

        Raises ConfigError where the first start of a child fails by the user's mistake, ChildFailed where it fails
        otherwise or a child cannot be kept running.
        """
        before = {which: signal.signal(which, self._signal) for which in (signal.SIGTERM, signal.SIGINT)}
        try:
            self.start()
            while self._stop is None:
                self.watch(0.5)
            self._log.info("stopping: %s", self._stop)
            return 0
        finally:
            self.stop()
            for which, handler in before.items():
                signal.signal(which, handler)

    def start(self) -> None:
        """Start the children one after another, each once those before can serve, unless they start side by side."""
        waiting: list[_Running] = []
        try:
            for child, after in zip_longest(self._children, self._children[1:]):
                self._running.append(self._launch(child))
                waiting.append(self._running[-1])
                if child.beside and after is not None and after.beside:
                    continue
                for running in waiting:
                    self._await_ready(running)
                    if self._stop is not None:
                        return
                waiting.clear()
        except BaseException:
            self.stop()
            raise

    def watch(self, wait_s: float) -> None:
        """Wait a while; restart what died meanwhile, each by itself. Raises ChildFailed for what must not be."""
        dues = [running.due for running in self._running if running.due is not None]
        soonest = min((due - self._clock() for due in dues), default=wait_s)
        self._sleep(max(0.0, min(wait_s, soonest)), [one.report for one in self._running if one.report >= 0])
        for running in self._running:
            if self._stop is None:
                self._look_after(running)

    def stop(self) -> None:
        """End all children, the last started first, those beside each other at once: ask, wait for `grace_s`, kill."""
        deadline = self._clock() + self._grace_s
        for running in self._running:
            if running.child.beside and running.process.poll() is None:
                running.process.terminate()
        for running in reversed(self._running):
            if not running.child.beside and running.process.poll() is None:
                running.process.terminate()
            while running.process.poll() is None and self._clock() < deadline and not self._hurry:
                self._sleep(0.05)
            if running.process.poll() is None:
                self._log.warning("%s did not end in time and is killed", running.child.name)
                running.process.kill()
                running.process.wait()
            self._close_report(running)
        self._running.clear()

    def pid(self, name: str) -> int:
        """Process id of a child."""
        return next(running.process.pid for running in self._running if running.child.name == name)

    def request_stop(self, why: str) -> None:
        """Let `run` return soon; safe from signal handlers and other threads. A second time: kill instead of asking."""
        self._hurry = self._stop is not None
        self._stop = why
        self._wake()

    # --- one child ---------------------------------------------------------------------------------------------

    def _launch(self, child: Child, again: Sequence[str] = ()) -> _Running:
        read, write = os.pipe()
        argv = [*child.argv, *again, "--ready-fd", str(write), "--parent", str(os.getpid())]
        try:
            # A session of its own: Ctrl-C reaches this process alone, which then ends the children in order.
            process = subprocess.Popen(argv, pass_fds=(write, *child.fds), env=child.env, start_new_session=True)
        except OSError as error:
            os.close(read)
            raise ChildFailed(f"{child.name} cannot be started: {error}") from None
        finally:
            os.close(write)
        return _Running(child, process, read, [self._clock()])

    def _await_ready(self, running: _Running) -> None:
        while self._stop is None and not self._is_ready(running):
            self._sleep(0.5, [running.report])

    def _is_ready(self, running: _Running) -> bool:
        """Whether a child that starts can serve by now. Raises why it cannot."""
        deadline = running.starts[-1] + self._start_s
        while select.select([running.report], [], [], 0)[0]:
            chunk = os.read(running.report, 65536)
            running.said += chunk
            if not chunk:
                self._judge(running)
                return True
        if self._clock() >= deadline:
            raise ChildFailed(f"{running.child.name} was not ready within {self._start_s:g} s")
        return False

    def _judge(self, running: _Running) -> None:
        said, running.said = running.said, b""
        self._close_report(running)
        if not said:
            raise ChildFailed(f"{running.child.name} {ending(running.process.wait())} before it was ready")
        report = msgspec.json.decode(said, type=Report)
        if report.error is not None:
            raise ConfigError(report.error) if report.config else ChildFailed(f"{running.child.name}: {report.error}")

    def _look_after(self, running: _Running) -> None:
        """The next thing that is to be done for one child, if there is any; nothing of it waits."""
        if running.due is not None:
            if self._clock() >= running.due:
                self._restart(running)
        elif running.report >= 0:
            try:
                self.restarted += self._is_ready(running)
            except ChildFailed as error:
                running.process.kill()
                running.process.wait()
                self._close_report(running)
                self._revive(running, f"failed again ({error})")
        elif running.process.poll() is not None:
            self._revive(running, ending(running.process.returncode))

    def _revive(self, running: _Running, how: str) -> None:
        """Have a child started again a while later. Raises ChildFailed where it must not be, or was too often."""
        child, now = running.child, self._clock()
        if not child.restart:
            raise ChildFailed(f"{child.name} {how}")
        running.starts = [at for at in running.starts if now - at < self._window_s]
        if len(running.starts) > self._restarts:
            raise ChildFailed(f"{child.name} {how} and was restarted {self._restarts} times in {self._window_s:g} s")
        self._log.error("%s %s; restarting it", child.name, how)
        running.due = now + min(5.0, 0.1 * 2 ** len(running.starts))

    def _restart(self, running: _Running) -> None:
        fresh = self._launch(running.child, running.child.again)
        running.process, running.report, running.said, running.due = fresh.process, fresh.report, b"", None
        running.starts += fresh.starts

    def _close_report(self, running: _Running) -> None:
        if running.report >= 0:
            os.close(running.report)
            running.report = -1

    # --- waking ------------------------------------------------------------------------------------------------

    def _signal(self, number: int, frame: FrameType | None) -> None:
        self.request_stop(signal.Signals(number).name)

    def _wake(self) -> None:
        with suppress(BlockingIOError):  # full: it is awake already
            os.write(self._wake_write, b"!")

    def _sleep(self, wait_s: float, fds: Sequence[int] = ()) -> None:
        """Wait for a wake-up, or until one of these has something."""
        readable, _, _ = select.select([self._wake_read, *fds], [], [], wait_s)
        if self._wake_read in readable:
            os.read(self._wake_read, 4096)


def ending(status: int) -> str:
    """How a process ended, by its status as `subprocess` gives it."""
    return f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
