"""What front end and engine say to each other, in process or over ZeroMQ (msgspec, msgpack)."""

from __future__ import annotations

import msgspec

from stepwell.engine.stats import Told
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
    """Front end to engine: a verb of `Controls` or of `Attachment`. Answered by a Reply of the same id."""

    id: int
    verb: str
    given: dict[str, object] = {}
    """What the verb is about: for `storage.attach` the `[storage]` table."""


class Reply(msgspec.Struct, tag=True, frozen=True):
    """Engine to front end: a JSON-like answer, or an error in one sentence."""

    id: int
    value: dict[str, object] = {}
    error: str | None = None
    fault: str = ""
    """Of an error: `config` where what was given is wrong, `conflict` where it cannot be done as things are now."""


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
    told: Told = Told()
    """What is counted and is no plain number."""


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
    """Whether the front end should compute digests: storage is attached. As the latest Pulse has it, see `heard`."""
    plugins: str
    """Digest of names and versions of the plugins loaded; the front end's must be equal."""
    largest: int | None = None
    """Most tokens of prompt and answer that one request can have: as device memory holds and `context` allows."""


ATTACHED = "storage_attached"
"""The value of a Pulse that says whether there is storage now."""


def heard(hello: Hello, pulse: Pulse) -> Hello:
    """What an engine says of itself, as it is now. Digests that come late or needlessly cost time, nothing else."""
    storage = bool(pulse.values.get(ATTACHED, hello.storage))
    return hello if storage == hello.storage else msgspec.structs.replace(hello, storage=storage)


ToEngine = Submit | Abort | Control
FromEngine = Output | Reply | Pulse | Hello
