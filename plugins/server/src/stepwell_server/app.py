"""The ASGI application: routes, and errors in one shape."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Lifespan, Message, Receive, Scope, Send

from stepwell.abc.codec import Codec
from stepwell.cache.keys import namespace
from stepwell.engine.client import EngineLost
from stepwell.errors import StepwellError
from stepwell_server import health, read
from stepwell_server.answer import Span, chunks, collect, run
from stepwell_server.body import chat_body, completion_body
from stepwell_server.choice import Choice
from stepwell_server.collector import EngineCollector
from stepwell_server.deliver import GONE, ClientGone, EventStream, begin, unless_gone
from stepwell_server.errors import ApiError, failed, unavailable
from stepwell_server.format import ChatFormat, Format, Head, TextFormat
from stepwell_server.gate import Gate
from stepwell_server.metrics import Meter
from stepwell_server.port import Engine
from stepwell_server.prepare import Asked, Limits, Preparer
from stepwell_server.settings import ServerSettings
from stepwell_server.shapes import Model, Models

JSON = "application/json"
CONTROLS = {"flush": "POST", "stats": "GET", "audit": "POST"}
"""Verbs of the engine under /admin, and their method."""
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


@dataclass
class Front:
    """The state of one front end."""

    settings: ServerSettings
    codec: Codec | None = None
    engine: Engine | None = None
    starting: str = "the engine is starting"
    aliases: tuple[str, ...] = ()
    """Further names under which clients may ask for the model."""
    meter: Meter = field(default_factory=Meter)
    executor: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(2, "prepare"))
    born: int = field(default_factory=lambda: int(time.time()))

    def __post_init__(self) -> None:
        self.gate = Gate(self.settings.max_waiting)
        collector = EngineCollector(lambda: self.engine, self.settings.pulse_s, lambda: self.gate.waiting)
        self.meter.registry.register(collector)

    def serving(self) -> tuple[Engine, Codec]:
        """Engine and codec, or the reason why nothing can be asked of them."""
        if self.engine is None or self.codec is None:
            raise unavailable(self.starting, "starting", 2)
        if self.engine.why_down:
            raise unavailable(f"the engine is down: {self.engine.why_down}", "engine_down", 2)
        return self.engine, self.codec

    @property
    def names(self) -> tuple[str, ...]:
        """The model's names towards clients; the first is the one that answers carry."""
        if self.settings.served_model_name is not None:
            return (self.settings.served_model_name,)
        own = (self.engine.hello.model,) if self.engine is not None else ()
        return tuple(dict.fromkeys((*own, *self.aliases)))


def make_app(front: Front, lifespan: Lifespan[Starlette] | None = None) -> ASGIApp:
    """The application of a front end."""
    routes = [
        Route("/v1/chat/completions", _answering(front, chat), methods=["POST"], name="chat"),
        Route("/v1/completions", _answering(front, completions), methods=["POST"], name="completions"),
        Route("/v1/models", _plain(front, models), methods=["GET"], name="models"),
        Route("/v1/models/{id:path}", _plain(front, model), methods=["GET"], name="model"),
        Route("/health", _plain(front, ready), methods=["GET"], name="health"),
        Route("/health/ready", _plain(front, ready), methods=["GET"], name="health"),
        Route("/health/live", _plain(front, live), methods=["GET"], name="health"),
        Route("/metrics", _plain(front, metrics), methods=["GET"], name="metrics"),
    ]
    if front.settings.admin_key is not None:
        routes += [
            Route(f"/admin/{verb}", _plain(front, admin(verb)), methods=[method], name="admin")
            for verb, method in CONTROLS.items()
        ]
    handlers = {HTTPException: _http_error(front), ApiError: _api_error(front), Exception: _any_error(front)}
    app = Starlette(routes=routes, exception_handlers=handlers, lifespan=lifespan)
    app.router.redirect_slashes = False
    return Guarded(app, front)


class Guarded:
    """Counts requests, and asks for the key that a path needs before anything else looks at them."""

    def __init__(self, app: ASGIApp, front: Front) -> None:
        self._app, self._front = app, front
        keys = front.settings.api_key, front.settings.admin_key
        self._keys = {
            prefix: read.Key(key) for prefix, key in zip(("/v1/", "/admin/"), keys, strict=True) if key is not None
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

        key = next((key for prefix, key in self._keys.items() if scope["path"].startswith(prefix)), None)
        try:
            if key is not None:
                key.check(Request(scope).headers.get("authorization"))
        except ApiError as error:
            await _refuse(self._front, error)(scope, receive, counted)
            return
        await self._app(scope, receive, counted)


# --- answers -----------------------------------------------------------------------------------------------------

Handler = Callable[[Front, Request], Awaitable[Response]]


def _plain(front: Front, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        return await handler(front, request)

    return endpoint


def _answering(front: Front, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        try:
            response = await handler(front, request)
        except ClientGone:
            front.meter.gone()
            response = Response(status_code=GONE)
        return response

    return endpoint


async def chat(front: Front, request: Request) -> Response:
    """POST /v1/chat/completions."""
    engine, codec = front.serving()
    settings = front.settings
    body = chat_body(await read.body(request, int(settings.max_body_mib * 2**20), settings.client_timeout_s))
    _known(front, body.model)
    asked = await _preparer(front, codec).chat(body, engine.hello, request.headers)
    return await answer(front, request, asked, ChatFormat(asked, _head(front, engine, asked)))


async def completions(front: Front, request: Request) -> Response:
    """POST /v1/completions."""
    engine, codec = front.serving()
    settings = front.settings
    body = completion_body(await read.body(request, int(settings.max_body_mib * 2**20), settings.client_timeout_s))
    _known(front, body.model)
    asked = await _preparer(front, codec).completion(body, engine.hello, request.headers)
    return await answer(front, request, asked, TextFormat(asked, _head(front, engine, asked)))


async def answer(front: Front, request: Request, asked: Asked, form: Format) -> Response:
    """Run what was asked and answer, whole or as a stream."""
    engine, codec = front.serving()
    ends, scored = frozenset(engine.hello.eos), asked.logprobs is not None
    choices = [Choice(i, codec, asked.stop, scored, ends) for i in range(len(asked.requests))]
    steps = run(asked, choices, engine, Span(asked, front.gate, front.meter))
    if not asked.stream:
        body = await unless_gone(collect(asked, choices, steps, form), request.receive)
        return Response(body, media_type=JSON)
    items = chunks(asked, choices, steps, form)
    first = await begin(items, request.receive, front.settings.ping_s)
    return EventStream(
        items,
        first,
        ping_s=front.settings.ping_s,
        stuck_s=front.settings.client_timeout_s,
        failed=lambda error: front.meter.error(error.code or error.kind),
        gone=front.meter.gone,
    )


def _known(front: Front, model: str) -> None:
    if model not in front.names:
        raise _no_model(front, model)


def _no_model(front: Front, model: str) -> ApiError:
    text = f"there is no model {model[:128]!r} here; have {', '.join(front.names)}"
    return ApiError(404, text, param="model", code="model_not_found")


def _preparer(front: Front, codec: Codec) -> Preparer:
    return Preparer(codec, Limits(front.settings.max_choices, front.settings.default_max_tokens), front.executor)


def _head(front: Front, engine: Engine, asked: Asked) -> Head:
    fingerprint = "fp_" + namespace(engine.hello.namespace).hex()[:12]
    return Head(asked.id, int(time.time()), front.names[0], fingerprint)


# --- everything else ---------------------------------------------------------------------------------------------


async def models(front: Front, request: Request) -> Response:
    """GET /v1/models."""
    engine, _ = front.serving()
    found = [Model(name, front.born, engine.hello.context) for name in front.names[:1]]
    return Response(msgspec.json.encode(Models(found)), media_type=JSON)


async def model(front: Front, request: Request) -> Response:
    """GET /v1/models/ID."""
    engine, _ = front.serving()
    name = request.path_params["id"]
    if name not in front.names:
        raise _no_model(front, name)
    return Response(msgspec.json.encode(Model(name, front.born, engine.hello.context)), media_type=JSON)


async def ready(front: Front, request: Request) -> Response:
    """GET /health and /health/ready."""
    found = await health.checked(front.engine, front.settings.pulse_s, front.starting)
    return Response(msgspec.json.encode(found.report), 200 if found.ready else 503, media_type=JSON)


async def live(front: Front, request: Request) -> Response:
    """GET /health/live."""
    found = await health.checked(front.engine, front.settings.pulse_s, front.starting)
    return Response(msgspec.json.encode(found.report), 200 if found.live else 503, media_type=JSON)


async def metrics(front: Front, request: Request) -> Response:
    """GET /metrics."""
    return Response(front.meter.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def admin(verb: str) -> Handler:
    """A route that passes a verb on to the engine."""

    async def handler(front: Front, request: Request) -> Response:
        engine, _ = front.serving()
        try:
            value = await engine.control(verb)
        except EngineLost as error:
            raise unavailable(str(error), "engine_down", 2) from None
        except StepwellError as error:
            raise failed(str(error)) from None
        return Response(msgspec.json.encode(value), media_type=JSON)

    return handler


# --- errors ------------------------------------------------------------------------------------------------------


def _refuse(front: Front, error: ApiError) -> Response:
    front.meter.error(error.code or error.kind)
    return Response(error.body, error.status, error.headers, JSON)


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
