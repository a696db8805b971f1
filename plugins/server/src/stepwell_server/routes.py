"""What each route does."""

from __future__ import annotations

import time

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from stepwell.abc.codec import Codec
from stepwell.cache.keys import namespace
from stepwell_server import health, read
from stepwell_server.admin import JSON
from stepwell_server.answer import Span, chunks, collect, run
from stepwell_server.body import chat_body, completion_body
from stepwell_server.choice import Choice
from stepwell_server.deliver import EventStream, begin, unless_gone
from stepwell_server.errors import ApiError
from stepwell_server.format import ChatFormat, Format, Head, TextFormat
from stepwell_server.port import Engine
from stepwell_server.prepare import Asked, Caller, Limits, Preparer
from stepwell_server.shapes import Model, Models
from stepwell_server.state import Front


async def chat(front: Front, request: Request) -> Response:
    """POST /v1/chat/completions."""
    engine, codec = front.serving()
    body = chat_body(await _body(front, request))
    _known(front, body.model)
    asked = await _preparer(front, codec).chat(body, engine.hello, _caller(request))
    return await answer(front, request, asked, ChatFormat(asked, _head(front, engine, asked)))


async def completions(front: Front, request: Request) -> Response:
    """POST /v1/completions."""
    engine, codec = front.serving()
    body = completion_body(await _body(front, request))
    _known(front, body.model)
    asked = await _preparer(front, codec).completion(body, engine.hello, _caller(request))
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


async def _body(front: Front, request: Request) -> bytes:
    return await read.body(request, int(front.settings.max_body_mib * 2**20), front.settings.client_timeout_s)


def _known(front: Front, model: str) -> None:
    if model not in front.names:
        raise _no_model(front, model)


def _no_model(front: Front, model: str) -> ApiError:
    text = f"there is no model {model[:128]!r} here; have {', '.join(front.names)}"
    return ApiError(404, text, param="model", code="model_not_found")


def _preparer(front: Front, codec: Codec) -> Preparer:
    settings = front.settings
    limits = Limits(settings.max_choices, settings.default_max_tokens, settings.tenant)
    return Preparer(codec, limits, front.executor)


def _caller(request: Request) -> Caller:
    return Caller(request.headers, request.scope.get(read.KEY_NAME))


def _head(front: Front, engine: Engine, asked: Asked) -> Head:
    fingerprint = "fp_" + namespace(engine.hello.namespace).hex()[:12]
    return Head(asked.id, int(time.time()), front.names[0], fingerprint)


# --- everything else -------------------------------------------------------------------------------------------------


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
