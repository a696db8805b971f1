"""The front end's process: `python -m stepwell_server.front --plan FILE`, started by the launcher."""

from __future__ import annotations

import argparse
import asyncio
import logging
import socket
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import uvicorn
from starlette.applications import Starlette

from stepwell.assemble import Assembly
from stepwell.config import Config, environment
from stepwell.engine.client import EngineClient
from stepwell.engine.supervise import Lifeline
from stepwell.errors import StepwellError
from stepwell.process import FORMAT
from stepwell.route.choose import policy
from stepwell.route.client import RoutedClient
from stepwell_server.app import make_app
from stepwell_server.listen import url
from stepwell_server.port import Engine
from stepwell_server.settings import ServerSettings
from stepwell_server.state import Front

FOREVER_S = 1e9
TELL_S = 5.0
"""Seconds between two words on a start that takes its time."""
OTHERS_S = 10.0
"""Seconds that further groups get to join after the first, before answers are given without them."""
DRAIN_S = 5
"""Seconds for answers to be delivered once the engine has ended."""


class Plan(msgspec.Struct, frozen=True):
    """What the launcher tells a front end; in a file that only this user can read, since it holds keys."""

    addresses: list[str]
    """Of the engine, or of one for each group."""
    fd: int
    config: str | None
    sets: list[str]
    extra: dict[str, object]


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until told to stop. Exit status 0: told so; 2: the config cannot run; 1: anything else."""
    parser = argparse.ArgumentParser(prog="python -m stepwell_server.front")
    parser.add_argument("--plan", required=True, type=Path)
    parser.add_argument("--ready-fd", type=int, default=-1)
    parser.add_argument("--parent", type=int, default=0)
    options = parser.parse_args(arguments)
    lifeline = Lifeline(options.ready_fd, options.parent)
    logging.basicConfig(level=logging.INFO, format=FORMAT, stream=sys.stderr)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    try:
        plan = msgspec.json.decode(options.plan.read_bytes(), type=Plan)
        path = None if plan.config is None else Path(plan.config)
        config = Config.load(path, environment(), plan.sets, plan.extra)
        settings = config.bind("server", ServerSettings)
        process = Process(plan, settings, Assembly(config, config.load_plugins()), lifeline)
    except Exception as error:
        return lifeline.failed(error)
    return process.run()


class Process:
    """Uvicorn, and the connection to the engine that is made while it serves already."""

    def __init__(self, plan: Plan, settings: ServerSettings, assembly: Assembly, lifeline: Lifeline) -> None:
        self._plan, self._assembly, self._lifeline = plan, assembly, lifeline
        self._log = logging.getLogger("stepwell.front")
        model = getattr(assembly.resolved.chosen["runner"].settings, "model", None)
        self.front = Front(settings, aliases=(model,) if isinstance(model, str) else ())
        self._listening = socket.socket(fileno=plan.fd)
        self._status = 0
        self._server = uvicorn.Server(
            uvicorn.Config(
                make_app(self.front, self._lifespan),
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=max(1, round(settings.keep_alive_s)),
                timeout_graceful_shutdown=DRAIN_S,
                lifespan="on",
            )
        )

    def run(self) -> int:
        """Serve until told to stop."""
        self._server.run([self._listening])
        return self._status

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        joining = asyncio.create_task(self._join())
        self._lifeline.ready()
        yield
        joining.cancel()
        await asyncio.gather(joining, return_exceptions=True)
        if self.front.engine is not None:
            await self.front.engine.close()
        self.front.executor.shutdown(wait=False, cancel_futures=True)

    async def _join(self) -> None:
        try:
            self.front.starting = "the tokenizer is being loaded"
            self.front.codec = await asyncio.to_thread(self._assembly.codec)
            self.front.engine = await self._connect()
            self._log.info("serving %s at %s/v1", self.front.names[0], url(self._listening))
        except StepwellError as error:
            self._log.error("%s", error)
            self.front.starting = str(error)
            self._status, self._server.should_exit = 2, True
        except Exception as error:
            self._log.exception("the front end cannot join the engine")
            self.front.starting = f"{type(error).__name__}: {error}"
            self._status, self._server.should_exit = 1, True

    async def _connect(self) -> Engine:
        """Wait for the engine, or for a first one of several, and say so from time to time."""
        begin = time.monotonic()
        plugins = self._assembly.registry.digest()
        joining = asyncio.create_task(self._join_all(plugins))
        try:
            self.front.starting = "the engine is loading its model"
            while not joining.done():
                await asyncio.wait({joining}, timeout=TELL_S)
                if not joining.done():
                    waited = time.monotonic() - begin
                    self.front.starting = f"the engine has been loading its model for {waited:.0f} s"
                    self._log.info("%s", self.front.starting)
            return joining.result()
        finally:
            joining.cancel()

    async def _join_all(self, plugins: str) -> Engine:
        """The engine; of several, all that come within a while of the first. The others join when they are there."""
        if len(self._plan.addresses) == 1:
            return await EngineClient.connect(self._plan.addresses[0], plugins=plugins, timeout_s=FOREVER_S)
        members = {str(group): EngineClient.join(at, plugins=plugins) for group, at in enumerate(self._plan.addresses)}
        waits = [asyncio.create_task(member.joined()) for member in members.values()]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait(waits, timeout=OTHERS_S)
        for wait in waits:
            if wait.done():
                wait.result()
            else:
                wait.add_done_callback(self._late)
        choice = self._assembly.resolved.chosen["route"]
        return RoutedClient(members, policy(choice, self._assembly.config))

    def _late(self, wait: asyncio.Task[None]) -> None:
        """A group came after the others; one that does not fit ends the server, as it would have at first."""
        if not wait.cancelled() and (error := wait.exception()) is not None:
            self._log.error("%s", error)
            self._status, self._server.should_exit = 2, True


if __name__ == "__main__":
    sys.exit(main())
