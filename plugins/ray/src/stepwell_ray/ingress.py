"""The front end in a Ray Serve replica: the server's own application over one client for all engines.

Which engines there are is asked of Ray Serve, again and again; to each of them there is a connection of its own, over
which requests go and answers and KV events come.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ray import serve
from ray.serve.handle import DeploymentHandle
from starlette.applications import Starlette
from starlette.types import ASGIApp, Receive, Scope, Send

from stepwell.assemble import Assembly
from stepwell.route.choose import chosen, policy
from stepwell_ray.parcel import Parcel
from stepwell_ray.replicas import Replicas
from stepwell_server.app import make_app
from stepwell_server.settings import ServerSettings
from stepwell_server.state import Front

LOOK_S = 0.5
"""Seconds between two looks at which replicas there are."""


@serve.ingress()
class Ingress:
    """Deployed; Ray Serve's proxy sends it what clients ask for."""

    def __init__(self, parcel: Parcel, engines: DeploymentHandle) -> None:
        """Nothing is joined yet: that happens while it serves already, and says that it is starting."""
        config = parcel.open()
        registry = config.load_plugins()
        self._policy = policy(chosen(config, registry), config)
        server = config.bind("server", ServerSettings)
        self._assembly = Assembly(config, registry)
        model = getattr(self._assembly.resolved.chosen["runner"].settings, "model", None)
        self._front = Front(server, aliases=(model,) if isinstance(model, str) else ())
        self._engines = engines
        self._log = logging.getLogger("stepwell.ray")

    def __serve_build_asgi_app__(self) -> ASGIApp:
        """What Serve calls after the constructor."""
        return Unprefixed(make_app(self._front, self._lifespan))

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        replicas = Replicas(self._assembly, self._policy)
        looking = asyncio.create_task(self._look(replicas))
        yield
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
        await replicas.close()
        self._front.executor.shutdown(wait=False, cancel_futures=True)

    async def _look(self, replicas: Replicas) -> None:
        """Keep up with which replicas there are, for as long as this ingress serves."""
        self._front.starting = "the tokenizer is being loaded"
        self._front.codec = await asyncio.to_thread(self._assembly.codec)
        self._front.starting = "the replicas are loading their model"
        while True:
            try:
                found = await self._engines.broadcast("where").results_async(timeout_s=10.0, return_exceptions=True)
                there = [where for where in found if isinstance(where, dict)]
                await replicas.update(there, whole=len(there) == len(found))
                if self._front.engine is None and replicas.client is not None:
                    self._front.engine = replicas.client
            except Exception as error:  # whatever ails Ray, those who are joined go on serving
                self._log.warning("the replicas cannot be listed: %s: %s", type(error).__name__, error)
            await asyncio.sleep(LOOK_S)


class Unprefixed:
    """Takes off the path under which Serve mounted the application: keys are asked for by paths without it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        prefix = scope.get("root_path", "")
        if prefix and scope["type"] == "http":
            scope = {**scope, "root_path": "", "path": scope["path"].removeprefix(prefix) or "/"}
        await self._app(scope, receive, send)
