"""An engine in a process of its own: `python -m stepwell.process --address ADDRESS [--config FILE] [--set ...]`.

A supervisor starts it (see `engine_child`) and front ends talk to it with an EngineClient.
"""

from __future__ import annotations

import argparse
import logging
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType

import msgspec

from stepwell.assemble import Assembly
from stepwell.config import Config, environment
from stepwell.engine.gate import Gate
from stepwell.engine.loop import Said
from stepwell.engine.messages import Pulse
from stepwell.engine.shell import Shell
from stepwell.engine.supervise import Child, Lifeline
from stepwell.private import PrivateFolder

FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


def engine_child(
    address: str,
    path: Path | str | None = None,
    sets: Sequence[str] = (),
    extra: Mapping[str, object] | None = None,
    *,
    restart: bool = True,
) -> Child:
    """The engine as a Supervisor keeps it. `path`, `sets` and `extra` are those of `Config.load`."""
    argv = [sys.executable, "-m", "stepwell.process", "--address", address]
    if path is not None:
        argv += ["--config", str(path)]
    for text in sets:
        argv += ["--set", text]
    if extra:
        argv += ["--extra-json", msgspec.json.encode(extra).decode()]
    return Child("engine", argv, restart=restart, again=["--again"])


def log_format(group: object) -> str:
    """Of a process's log; of several groups' engines, which write to one terminal, each says which it is."""
    return FORMAT if group is None else FORMAT.replace("%(name)s", f"group {group}: %(name)s")


@contextmanager
def private_address() -> Iterator[str]:
    """An address that only this user can reach; its folder goes at the end."""
    folder = PrivateFolder()
    try:
        yield f"ipc://{folder.path}/engine"
    finally:
        folder.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until told to stop. Exit status 0: told so; 2: the config cannot run; 1: anything else."""
    parser = argparse.ArgumentParser(prog="python -m stepwell.process")
    parser.add_argument("--address", required=True)
    parser.add_argument("--config")
    parser.add_argument("--set", dest="sets", action="append", default=[])
    parser.add_argument("--extra-json", default="{}")
    parser.add_argument("--again", action="store_true", help="it has run before: do without a storage that is gone")
    parser.add_argument("--ready-fd", type=int, default=-1)
    parser.add_argument("--parent", type=int, default=0)
    options = parser.parse_args(arguments)
    lifeline = Lifeline(options.ready_fd, options.parent)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # until there is something to stop, no traceback either
    extra = msgspec.json.decode(options.extra_json, type=dict[str, object])
    logging.basicConfig(level=logging.INFO, format=log_format(extra.get("ranks.group")), stream=sys.stderr)
    try:
        path = None if options.config is None else Path(options.config)
        config = Config.load(path, environment(), options.sets, extra)
        host = Host(config, options.address, again=options.again)
    except Exception as error:
        if options.ready_fd < 0:
            logging.getLogger("stepwell.process").error("%s", error)
        return lifeline.failed(error)
    lifeline.ready()
    return host.run()


class Host:
    """Shell and gate of one process."""

    def __init__(self, config: Config, address: str, *, again: bool = False) -> None:
        """Build everything, and take requests at `address`. A signal before that is the end, as it is by default.

        `again`: this engine has run before, so it comes up even where its storage does not.
        """
        self._log = logging.getLogger("stepwell.process")
        assembly = Assembly(config, config.load_plugins())
        self._signals: list[str] = []
        self._gate: Gate | None = None
        self._shell = Shell(partial(assembly.parts, again=again), self._deliver)
        parts = self._shell.start()
        for line in parts.summary:
            self._log.info("%s", line)
        self._gate = Gate(address, parts.hello, self._shell.post)
        for which in (signal.SIGTERM, signal.SIGINT):
            signal.signal(which, self._signal)

    def run(self) -> int:
        """Pass messages until the shell has ended. A first signal lets requests finish, a second does not."""
        assert self._gate is not None
        obeyed = 0
        while self._shell.running:
            self._gate.turn()
            if len(self._signals) > obeyed:
                obeyed = len(self._signals)
                self._log.info("stopping: %s", self._signals[-1])
                self._shell.stop("the engine was stopped", drain_s=None if obeyed == 1 else 0.0)
        self._shell.join()
        self._gate.close(self._shell.failed or "the engine was stopped")
        return 0 if self._shell.failed is None else 1

    def _deliver(self, said: Sequence[Said]) -> None:
        """The shell's voice. Nobody can have asked anything before there is a gate; only pulses come then."""
        if self._gate is not None:
            self._gate.deliver(said)
        else:
            assert all(isinstance(one, Pulse) for one in said)

    def _signal(self, number: int, frame: FrameType | None) -> None:
        """Only note it: a handler may run while this very thread holds a lock that stopping needs."""
        assert self._gate is not None
        self._signals.append(signal.Signals(number).name)
        self._gate.wake()


if __name__ == "__main__":
    sys.exit(main())
