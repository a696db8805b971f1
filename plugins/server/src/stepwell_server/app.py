"""The ASGI application: routes behind their keys, and errors in one shape."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Lifespan, Message, Receive, Scope, Send

from stepwell_server import admin, read, routes
from stepwell_server.deliver import GONE, ClientGone
from stepwell_server.errors import ApiError, failed
from stepwell_server.state import Front

ROUTES = {
    "/v1/chat/completions": "chat/completions",
    "/v1/completions": "completions",
    "/v1/models": "models",
    "/health": "health",
    "/health/ready": "health",
    "/health/live": "health",
    "/metrics": "metrics",
}
"""Paths by the name under which they are counted; clients choose paths, so all others share one."""


def make_app(front: Front, lifespan: Lifespan[Starlette] | None = None) -> ASGIApp:
    """The application of a front end."""
    served = [
        Route("/v1/chat/completions", _bound(front, routes.chat), methods=["POST"], name="chat"),
        Route("/v1/completions", _bound(front, routes.completions), methods=["POST"], name="completions"),
        Route("/v1/models", _bound(front, routes.models), methods=["GET"], name="models"),
        Route("/v1/models/{id:path}", _bound(front, routes.model), methods=["GET"], name="model"),
        Route("/health", _bound(front, routes.ready), methods=["GET"], name="health"),
        Route("/health/ready", _bound(front, routes.ready), methods=["GET"], name="health"),
        Route("/health/live", _bound(front, routes.live), methods=["GET"], name="health"),
        Route("/metrics", _bound(front, routes.metrics), methods=["GET"], name="metrics"),
    ]
    if front.settings.admin_key is not None:
        served += admin.routes(front, _bound)
    handlers = {HTTPException: _http_error(front), ApiError: _api_error(front), Exception: _any_error(front)}
    app = Starlette(routes=served, exception_handlers=handlers, lifespan=lifespan)
    app.router.redirect_slashes = False
    return Guarded(app, front)


class Guarded:
    """Counts requests, and asks for the key that a path needs before anything else looks at them."""

    def __init__(self, app: ASGIApp, front: Front) -> None:
        self._app, self._front = app, front
        self._keys = {
            prefix: read.Keys(keys)
            for prefix, keys in (("/v1/", front.settings.client_keys), ("/admin/", front.settings.admin_keys))
            if keys
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        route = ROUTES.get(scope["path"], "other")

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._front.meter.request(route, message["status"])
            await send(message)

        keys = next((keys for prefix, keys in self._keys.items() if scope["path"].startswith(prefix)), None)
        try:
            if keys is not None:
                scope[read.KEY_NAME] = keys.check(Request(scope).headers.get("authorization"))
        except ApiError as error:
            await _refuse(self._front, error)(scope, receive, counted)
            return
        await self._app(scope, receive, counted)


def _bound(front: Front, handler: admin.Handler) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        try:
            return await handler(front, request)
        except ClientGone:
            front.meter.gone()
            return Response(status_code=GONE)

    return endpoint


# --- errors ----------------------------------------------------------------------------------------------------------


def _refuse(front: Front, error: ApiError) -> Response:
    front.meter.error(error.code or error.kind)
    return Response(error.body, error.status, error.headers, admin.JSON)


def _api_error(front: Front) -> Callable[[Request, Exception], Awaitable[Response]]:
    async def handler(request: Request, error: Exception) -> Response:
        assert isinstance(error, ApiError)
        return _refuse(front, error)

    return handler


def _http_error(front: Front) -> Callable[[Request, Exception], Awaitable[Response]]:
    async def handler(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        where = f"{request.method} {request.url.path[:128]}"
        text = {404: f"there is no {where}", 405: f"{where}: the method is not allowed"}
        headers = dict(error.headers or {})
        told = ApiError(error.status_code, text.get(error.status_code, str(error.detail)), headers=headers)
        return _refuse(front, told)

    return handler


def _any_error(front: Front) -> Callable[[Request, Exception], Awaitable[Response]]:
    async def handler(request: Request, error: Exception) -> Response:
        return _refuse(front, failed("the server failed; its log says why"))

    return handler
