"""What front end and engine say to each other, in process or over ZeroMQ (msgspec, msgpack)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from stepwell.abc.sink import Event, PagesRemoved, PagesStored, TierCleared
from stepwell.engine.stats import Told
from stepwell.schedule.request import Request
from stepwell.types import DIGEST_BYTES, TAG_BYTES, Cached, Chunked, Full, GroupSpec, Need, Tier, TokenLogprob, Window


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


class Follow(msgspec.Struct, tag=True, frozen=True):
    """Front end to engine: tell me by KvEvents what device and host have, all of it first; or cease to."""

    on: bool = True


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


class KvRun(msgspec.Struct, array_like=True, frozen=True):
    """Pages of one group that came to a tier or left it; of no group: everything left it."""

    tier: str
    group: str = ""
    came: bool = False
    keys: bytes = b""


class KvEvents(msgspec.Struct, tag=True, frozen=True):
    """Engine to front ends that follow: what came and went since the last such message."""

    number: int
    """Counts up by one; 0 begins anew with all that is there."""
    runs: tuple[KvRun, ...]


def kv_events(number: int, events: Sequence[Event]) -> KvEvents:
    """Events as they travel. Storage is left out: it holds more than a front end could keep, and is mostly shared."""
    return KvEvents(number, tuple(_run(event) for event in events if event.tier is not Tier.STORAGE))


def _run(event: Event) -> KvRun:
    if isinstance(event, TierCleared):
        return KvRun(event.tier.value)
    return KvRun(event.tier.value, event.group, isinstance(event, PagesStored), b"".join(event.keys))


def events_of(message: KvEvents, page_tokens: int) -> list[Event]:
    """The events of a message; where they continue is not told. ValueError where it says what no engine says."""
    return [_event(run, page_tokens) for run in message.runs]


def _event(run: KvRun, page_tokens: int) -> Event:
    tier = Tier(run.tier)
    if not run.group:
        return TierCleared(tier)
    size = DIGEST_BYTES + TAG_BYTES
    if len(run.keys) % size:
        raise ValueError(f"{len(run.keys)} bytes of keys, each of which has {size}")
    keys = tuple([run.keys[at : at + size] for at in range(0, len(run.keys), size)])
    return PagesStored(tier, run.group, keys, None, page_tokens) if run.came else PagesRemoved(tier, run.group, keys)


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
    groups: dict[str, tuple[str, int]] = {}
    """What each attention group needs of the history: `full`, `window` or `chunked`, and of how many tokens."""

    @property
    def needs(self) -> dict[str, Need]:
        """The same by name, for whoever works out what is usable of a prefix."""
        return {name: NEEDS[kind](tokens) for name, (kind, tokens) in self.groups.items()}


NEEDS: dict[str, Callable[[int], Need]] = {"full": lambda tokens: Full(), "window": Window, "chunked": Chunked}


def groups_told(groups: Sequence[GroupSpec]) -> dict[str, tuple[str, int]]:
    """`Hello.groups` of a runner's groups."""
    return {
        group.name: (type(group.need).__name__.lower(), 0 if isinstance(group.need, Full) else group.need.tokens)
        for group in groups
    }


ATTACHED = "storage_attached"
"""The value of a Pulse that says whether there is storage now."""


def heard(hello: Hello, pulse: Pulse) -> Hello:
    """What an engine says of itself, as it is now. Digests that come late or needlessly cost time, nothing else."""
    storage = bool(pulse.values.get(ATTACHED, hello.storage))
    return hello if storage == hello.storage else msgspec.structs.replace(hello, storage=storage)


ToEngine = Submit | Abort | Control | Follow
FromEngine = Output | Reply | Pulse | Hello | KvEvents
