"""The routes under /admin: the engine's verbs, and storage that is attached, detached and cleared while it serves."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stepwell.engine.client import Conflict, EngineLost
from stepwell.errors import ConfigError, StepwellError
from stepwell_server import read
from stepwell_server.errors import ApiError, bad, failed, unavailable
from stepwell_server.state import Front

JSON = "application/json"
CONTROLS = {"flush": "POST", "stats": "GET", "audit": "POST"}
"""Verbs of the engine under /admin, and their method."""
ANSWER_S = 30.0
MOST_BYTES = 65_536
"""Of a `[storage]` table."""

Handler = Callable[[Front, Request], Awaitable[Response]]
Bound = Callable[[Front, Handler], Callable[[Request], Awaitable[Response]]]


def routes(front: Front, bound: Bound) -> list[Route]:
    """All of them; for a server that has an admin key."""
    handlers = [(f"/admin/{verb}", _verb(verb), method) for verb, method in CONTROLS.items()]
    handlers += [
        ("/admin/storage", _verb("storage"), "GET"),
        ("/admin/storage", attach, "PUT"),
        ("/admin/storage", attach, "POST"),
        ("/admin/storage", _verb("storage.detach", None), "DELETE"),
        ("/admin/storage/clear", _verb("storage.clear", None), "POST"),
    ]
    by_path: dict[str, dict[str, Handler]] = {}
    for path, handler, method in handlers:
        by_path.setdefault(path, {})[method] = handler
    return [
        Route(path, bound(front, _by_method(found)), methods=list(found), name="admin")
        for path, found in by_path.items()
    ]


async def attach(front: Front, request: Request) -> Response:
    """PUT and POST /admin/storage: a `[storage]` table, and `replace`."""
    text = await read.body(request, MOST_BYTES, front.settings.client_timeout_s)
    try:
        table = msgspec.json.decode(text, type=dict[str, object])
    except msgspec.DecodeError as error:
        raise bad(None, f"the body is no JSON object: {error}", "invalid_json") from None
    except RecursionError:
        raise bad(None, "the body is nested too deeply", "invalid_json") from None
    return await _ask(front, "storage.attach", None, table)


def _verb(verb: str, timeout_s: float | None = ANSWER_S) -> Handler:
    """A route that passes a verb on to the engine. What has no timeout ends when the engine says so."""

    async def handler(front: Front, request: Request) -> Response:
        return await _ask(front, verb, timeout_s)

    return handler


def _by_method(handlers: Mapping[str, Handler]) -> Handler:
    async def handler(front: Front, request: Request) -> Response:
        return await handlers["GET" if request.method == "HEAD" else request.method](front, request)

    return handler


async def _ask(front: Front, verb: str, timeout_s: float | None, given: Mapping[str, object] | None = None) -> Response:
    engine, _ = front.serving()
    try:
        value = await engine.control(verb, timeout_s, given)
    except EngineLost as error:
        raise unavailable(str(error), "engine_down", 2) from None
    except ConfigError as error:
        raise bad(None, str(error)) from None
    except Conflict as error:
        raise ApiError(409, str(error), code="conflict") from None
    except StepwellError as error:
        raise failed(str(error)) from None
    return Response(msgspec.json.encode(value), media_type=JSON)
