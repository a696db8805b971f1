"""What front end and engine say to each other, in process or over ZeroMQ (msgspec, msgpack)."""

from __future__ import annotations

import msgspec

from stepwell.schedule.request import Request
from stepwell.types import Cached, TokenLogprob


class Submit(msgspec.Struct, tag=True, frozen=True):
    """Front end to engine: a new request."""

    request: Request


class Abort(msgspec.Struct, tag=True, frozen=True):
    """Front end to engine: stop a request in any state. `finish`: the reason its last Output carries."""

    rid: str
    finish: str = "abort"


class Control(msgspec.Struct, tag=True, frozen=True):
    """Front end to engine: `flush`, `stats`, `drain`, `audit`. Answered by a Reply of the same id."""

    id: int
    verb: str


class Reply(msgspec.Struct, tag=True, frozen=True):
    """Engine to front end: a JSON-like answer, or an error in one sentence."""

    id: int
    value: dict[str, object] = {}
    error: str | None = None


class Output(msgspec.Struct, tag=True, frozen=True):
    """Engine to front end: new tokens of a request. Exactly one Output of each request has a `finish`."""

    rid: str
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None
    finish: str | None = None
    """stop, length, abort, refused (error says why), error."""
    error: str | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached: Cached = Cached()
    later: bool = False
    """Refused for now only: the queue is full, or the engine stops."""


class Pulse(msgspec.Struct, tag=True, frozen=True):
    """Engine to front end, about twice a second, from the serving loop itself: it is alive, and how it is doing."""

    ticks: int
    running: int
    waiting: int
    values: dict[str, float] = {}
    """Counters and gauges for metrics, by name."""


class Hello(msgspec.Struct, tag=True, frozen=True):
    """Engine to front end, once, when it can serve."""

    model: str
    context: int
    vocab: int
    eos: tuple[int, ...]
    page_size: int
    namespace: dict[str, str | None]
    """Parts of the namespace that the engine decides; the front end adds salt, adapter and extra."""
    storage: bool
    """Whether the front end should compute digests."""
    plugins: str
    """Digest of names and versions of the plugins loaded; the front end's must be equal."""
    largest: int | None = None
    """Most tokens of prompt and answer that one request can have: as device memory holds and `context` allows."""


ToEngine = Submit | Abort | Control
FromEngine = Output | Reply | Pulse | Hello
