"""A `stepwell serve` of its own: the same processes as the command starts, for as long as they are measured."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import ProxyHandler, build_opener

from stepwell.assemble import Assembly
from stepwell.config import Config, environment
from stepwell.engine.supervise import Supervisor
from stepwell.errors import StepwellError
from stepwell.process import private_address
from stepwell_server.launch import GRACE_S, check_groups, family
from stepwell_server.listen import listen, url
from stepwell_server.settings import ServerSettings

READY_S = 60.0
"""How long the front end may take to find an engine that has started."""


class Served:
    """The server: where it is, what its config is, and how to end it."""

    def __init__(self, path: Path | None, sets: Sequence[str], extra: Mapping[str, object]) -> None:
        """Start on a free port of this machine. On the main thread; raises what the start raises."""
        extra = {**extra, "server.host": "127.0.0.1", "server.port": 0}
        self.config = Config.load(path, environment(), sets, extra)
        settings = self.config.bind("server", ServerSettings)
        assembly = Assembly(self.config, self.config.load_plugins())  # says what is wrong before any process starts
        check_groups(self.config, assembly.resolved)
        groups = assembly.resolved.ranks.dp
        self.key = None if settings.api_key is None else str(settings.api_key)
        with ExitStack() as undo:
            listening = undo.enter_context(listen(self.config, settings))
            address = undo.enter_context(private_address())
            self.url = url(listening)
            supervisor = Supervisor(
                family(address, listening, settings, path, sets, extra, groups=groups), grace_s=GRACE_S
            )
            undo.callback(supervisor.stop)
            supervisor.start()
            self._await_health()
            self._undo = undo.pop_all()

    def close(self) -> None:
        """End it."""
        self._undo.close()

    def _await_health(self) -> None:
        deadline = time.monotonic() + READY_S
        opener = build_opener(ProxyHandler({}))
        while True:
            try:
                with opener.open(f"{self.url}/health", timeout=5):
                    return
            except (HTTPError, HTTPException, OSError) as error:
                if time.monotonic() > deadline:
                    raise StepwellError(f"the server did not become healthy within {READY_S:g} s: {error}") from None
            time.sleep(0.1)
