"""`stepwell.Engine`: serving from Python, in this process.

with stepwell.Engine(model="smollm2") as engine:
    print(engine.generate("Once upon a time", max_tokens=32).text)
"""

from __future__ import annotations

import queue
import uuid
import weakref
from array import array
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from math import inf
from pathlib import Path
from types import NoneType, TracebackType
from typing import Self, TypedDict, Unpack, overload

import msgspec

from stepwell.assemble import Assembly
from stepwell.cache.keys import namespace, page_digests
from stepwell.config import Config, environment
from stepwell.engine.answer import Answer, Completion, RequestFailed
from stepwell.engine.client import Outputs
from stepwell.engine.local import LocalClient, LocalEngine
from stepwell.engine.messages import Hello, Output
from stepwell.errors import ConfigError
from stepwell.schedule.request import Request
from stepwell.types import Sampling

__all__ = ["AsyncStream", "Completion", "Engine", "Options", "RequestFailed", "Stream"]

Message = Mapping[str, str]
Prompt = str | Sequence[int] | Sequence[Message]
"""Text, token ids, or a conversation of `{"role": ..., "content": ...}`."""


class Options(TypedDict, total=False):
    """Whatever else a request may be given."""

    max_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int | None
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logprobs: int | None
    stop_ids: tuple[int, ...]
    ignore_eos: bool
    stop: str | Sequence[str]
    """Texts that end the answer; they are not part of it."""
    priority: int
    """Larger is more urgent; 64 bits."""
    salt: str | None
    """Requests of different salts share no cached page."""
    store: bool
    """Whether its pages are kept for others."""
    ttl: float | None
    """Seconds for which its pages are kept if nobody else uses them."""
    routing_key: str | Sequence[str] | None
    """For schedule policies that group requests; of several prompts each may have its own, in a list."""
    tenant: str | None
    """Whose it is, for schedule policies that share fairly and for counts."""


@dataclass(frozen=True, slots=True)
class _Asked:
    request: Request
    stop: tuple[str, ...]


class Stream(Iterator[str]):
    """The text of an answer as it comes; afterwards `completion` has all of it. Closing it early aborts."""

    def __init__(self, engine: LocalEngine, answer: Answer, request: Request) -> None:
        self._engine, self._answer, self._rid = engine, answer, request.rid
        self._outputs: queue.SimpleQueue[Output] = queue.SimpleQueue()
        engine.submit(request, self._outputs.put)

    def __next__(self) -> str:
        while not self._answer.over:
            text = self._answer.take(self._outputs.get())
            if self._answer.stopped and not self._answer.over:
                self._engine.abort(self._rid, "stop")
            if text:
                return text
        raise StopIteration

    @property
    def completion(self) -> Completion:
        """The whole answer, once it has ended."""
        return self._answer.completion()

    def close(self) -> None:
        """Abort, unless it has ended."""
        if not self._answer.over:
            self._engine.abort(self._rid)
            self._answer.cut()


class AsyncStream(AsyncIterator[str]):
    """The same on an event loop."""

    def __init__(self, client: LocalClient, answer: Answer, request: Request) -> None:
        self._client, self._answer, self._request = client, answer, request
        self._outputs: Outputs | None = None

    async def __anext__(self) -> str:
        if self._outputs is None:
            self._outputs = await self._client.submit(self._request)
        while not self._answer.over:
            text = self._answer.take(await anext(self._outputs))
            if self._answer.stopped and not self._answer.over:
                await self._client.abort(self._request.rid, "stop")
            if text:
                return text
        raise StopAsyncIteration

    @property
    def completion(self) -> Completion:
        """The whole answer, once it has ended."""
        return self._answer.completion()

    async def aclose(self) -> None:
        """Abort, unless it has ended."""
        if self._outputs is not None and not self._answer.over:
            self._outputs.close()
            self._answer.cut()


class Engine:
    """A model behind its three-tier cache, on a thread of this process. Everything is for any thread."""

    def __init__(
        self, config: str | Path | Mapping[str, object] | None = None, *, sets: Sequence[str] = (), **settings: object
    ) -> None:
        """Load a config: a TOML file, or a mapping of `section.key` or sections, or neither.

        `settings` are sections or, for the runner's, single values: `runner="sim"`, `model="smollm2"`,
        `cache={"device_pages": 512}`. They win over the environment, which wins over the file.
        """
        extra: dict[str, object] = {}
        path = None
        if isinstance(config, Mapping):
            extra.update(config)
        elif config is not None:
            path = _file(config)
        for name, value in settings.items():
            extra.update(_setting(name, value))
        loaded = Config.load(path, environment(), sets, extra)
        assembly = Assembly(loaded, loaded.load_plugins())
        if (groups := assembly.resolved.ranks.dp) > 1:
            text = f"{groups} groups need a front end before them, which `stepwell serve` has; leave it out here"
            raise loaded.error("ranks", "dp", text)
        self._codec = assembly.codec()
        self._local = LocalEngine(assembly.parts)
        self._client = LocalClient(self._local)
        self._closing = weakref.finalize(self, self._local.close)
        self.summary = tuple(self._local.summary)
        """What was put together, a line each."""

    @classmethod
    def load(cls, config: str | Path | Mapping[str, object] | None = None, **settings: object) -> Self:
        """The same as the constructor, for those who like to read it so."""
        return cls(config, **settings)  # type: ignore[arg-type]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def hello(self) -> Hello:
        """What the engine says of itself: model, context, page size, and whether storage is attached."""
        return self._local.hello

    # --- answers -----------------------------------------------------------------------------------------------

    @overload
    def generate(  # type: ignore[overload-overlap]  # text is a sequence of texts, too
        self, prompt: str | Sequence[int], **options: Unpack[Options]
    ) -> Completion: ...
    @overload
    def generate(
        self, prompt: Sequence[str] | Sequence[Sequence[int]], **options: Unpack[Options]
    ) -> list[Completion]: ...
    def generate(
        self, prompt: str | Sequence[int] | Sequence[str] | Sequence[Sequence[int]], **options: Unpack[Options]
    ) -> Completion | list[Completion]:
        """Answer a prompt, or several at once. Raises RequestFailed where the engine refuses or fails."""
        prompts = _many(prompt)
        if prompts is None:
            return self._finish(self.stream(prompt, **options))  # type: ignore[arg-type]
        given = _apart(options, len(prompts))
        streams = [self.stream(one, **own) for one, own in zip(prompts, given, strict=True)]
        try:
            return [self._finish(stream) for stream in streams]
        finally:
            for stream in streams:
                stream.close()

    def chat(self, messages: Sequence[Message], **options: Unpack[Options]) -> Completion:
        """Answer a conversation. ValueError: what is none, or what the model's chat template refuses."""
        if isinstance(messages, (str, bytes, Mapping)) or not all(isinstance(one, Mapping) for one in messages):
            raise ValueError('messages: write a list of {"role": ..., "content": ...}')
        return self._finish(self.stream(messages, **options))

    def stream(self, prompt: Prompt, **options: Unpack[Options]) -> Stream:
        """Answer a prompt or a conversation, piece by piece."""
        asked = self._ask(prompt, options)
        return Stream(self._local, Answer(self._codec, asked.stop), asked.request)

    async def agenerate(self, prompt: Prompt, **options: Unpack[Options]) -> Completion:
        """Answer one prompt or conversation; gather several for a batch."""
        stream = self.astream(prompt, **options)
        try:
            async for _ in stream:
                pass
        finally:
            await stream.aclose()
        return stream.completion

    def astream(self, prompt: Prompt, **options: Unpack[Options]) -> AsyncStream:
        """Answer piece by piece, on an event loop."""
        asked = self._ask(prompt, options)
        return AsyncStream(self._client, Answer(self._codec, asked.stop), asked.request)

    # --- the engine --------------------------------------------------------------------------------------------

    def stats(self) -> dict[str, object]:
        """Counters and gauges by name; `queue_seconds`, a histogram; `by` routing key and tenant, where asked."""
        return self._local.control("stats")

    def flush(self) -> None:
        """Forget all that device and host have cached and no request uses. Storage keeps its pages."""
        self._local.control("flush")

    def audit(self) -> None:
        """Prove that every page has exactly one owner. Raises StepwellError with the first that has not."""
        self._local.control("audit")

    def storage(self) -> dict[str, object]:
        """Which storage is attached, its settings without secrets, its health, and counters over all there were."""
        return self._local.control("storage")

    def attach_storage(self, *, replace: bool = False, **table: object) -> dict[str, object]:
        """Attach a storage while requests go on: `attach_storage(use="file", path="/mnt/pages")`, a `[storage]` table.

        Answers as `storage`. ConfigError: a wrong setting, or the storage could not be made; all is as it was then.
        Conflict: one is attached already and `replace` is not set, or another change is under way.
        """
        return self._local.control("storage.attach", None, {**table, "replace": replace})

    def detach_storage(self) -> dict[str, object]:
        """Let go of the storage while requests go on; device and host keep their pages. Conflict: there is none.

        What is in flight gets a few seconds. `late_calls` in the answer still hang, and hold their pages until they
        return.
        """
        return self._local.control("storage.detach", None)

    def clear_storage(self) -> int:
        """Delete all of Stepwell's pages in the storage; answers how many. Conflict: it cannot list them."""
        cleared = self._local.control("storage.clear", None)["cleared"]
        assert isinstance(cleared, int)
        return cleared

    def drain(self, timeout_s: float | None = None) -> None:
        """Refuse further requests and wait until all is answered, saved and stored."""
        self._local.control("drain", timeout_s)

    def close(self) -> None:
        """End. Requests in flight are aborted; pages on their way to storage still arrive."""
        self._closing()

    # --- requests ----------------------------------------------------------------------------------------------

    def _finish(self, stream: Stream) -> Completion:
        try:
            for _ in stream:
                pass
        except BaseException:
            stream.close()
            raise
        return stream.completion

    def _ask(self, prompt: Prompt, options: Options) -> _Asked:
        _check_kinds(options)
        key = options.get("routing_key")
        tokens = self._tokens(prompt)
        space = namespace({**self.hello.namespace, "salt": options.get("salt")})
        request = Request(
            rid=uuid.uuid4().hex,
            namespace=space,
            tokens=tokens,
            digests=page_digests(space, tokens, self.hello.page_size) if self.hello.storage else b"",
            sampling=_sampling(options),
            priority=options.get("priority", 0),
            store=options.get("store", True),
            ttl=options.get("ttl"),
            routing_key=None if key is None else str(key),
            tenant=options.get("tenant"),
        )
        return _Asked(request, _stops(options.get("stop", ())))

    def _tokens(self, prompt: Prompt) -> bytes:
        if isinstance(prompt, str):
            return self._codec.encode(prompt)
        wrong = ValueError(f"a prompt is text, messages, or token ids from 0 to {self.hello.vocab - 1}")
        if not isinstance(prompt, Sequence):
            raise wrong
        messages = [one for one in prompt if isinstance(one, Mapping)]
        if messages and len(messages) == len(prompt):
            return self._codec.chat(messages)
        ids = [token for token in prompt if isinstance(token, int) and 0 <= token < self.hello.vocab]
        if len(ids) != len(prompt):
            raise wrong
        return array("i", ids).tobytes()


def _file(path: str | Path) -> Path:
    if not Path(path).exists():
        raise ConfigError(f"{path}: there is no such config file; a model is named by Engine(model={str(path)!r})")
    return Path(path)


def _setting(name: str, value: object) -> dict[str, object]:
    if name == "model":
        return {"runner.model": value}
    if isinstance(value, str):
        return {f"{name}.use": value}
    return {name: value}


def _many(prompt: object) -> list[Prompt] | None:
    """The prompts, where there are several."""
    if isinstance(prompt, str) or not isinstance(prompt, Sequence):
        return None
    return None if len(prompt) and isinstance(prompt[0], int) else list(prompt)


KINDS: Mapping[str, tuple[type, ...]] = {
    "salt": (str, NoneType),
    "store": (bool,),
    "ttl": (int, float, NoneType),
    "priority": (int,),
    "routing_key": (str, NoneType),
    "tenant": (str, NoneType),
}
"""What options that steer the engine may be."""
NAME_CHARS = 512
"""Of a routing key or a tenant."""


def _check_kinds(options: Options) -> None:
    for name, value in options.items():
        if name in KINDS and not isinstance(value, KINDS[name]):
            kinds = " or ".join("None" if kind is NoneType else kind.__name__ for kind in KINDS[name])
            raise ValueError(f"{name}: {value!r} is no {kinds}")
    for name in ("routing_key", "tenant"):
        _check_name(name, options.get(name))
    if not -(2**63) <= options.get("priority", 0) < 2**63:
        raise ValueError("priority: must fit into 64 bits")


def _check_name(option: str, value: object) -> None:
    if isinstance(value, str) and not 1 <= len(value) <= NAME_CHARS:
        raise ValueError(f"{option}: has {len(value)} characters; have 1 to {NAME_CHARS}, or leave it out")


def _apart(options: Options, prompts: int) -> list[Options]:
    """The options of each of several prompts, which may have routing keys of their own."""
    keys = options.get("routing_key")
    if keys is None or isinstance(keys, str) or not isinstance(keys, Sequence):
        return [options] * prompts
    if len(keys) != prompts:
        raise ValueError(f"routing_key: {len(keys)} keys for {prompts} prompts")
    return [{**options, "routing_key": key} for key in keys]


def _stops(stop: object) -> tuple[str, ...]:
    texts = (stop,) if isinstance(stop, str) else tuple(stop) if isinstance(stop, Sequence) else (None,)
    if not all(isinstance(text, str) and text for text in texts):
        raise ValueError(f"stop: {stop!r} is no text, nor a list of texts, that could end an answer")
    return tuple(str(text) for text in texts)


def _sampling(options: Options) -> Sampling:
    """What the options say about sampling. TypeError for a name that nothing knows, ValueError for a value."""
    unknown = options.keys() - Options.__annotations__.keys()
    if unknown:
        raise TypeError(f"no such option: {', '.join(sorted(unknown))}; have {', '.join(Options.__annotations__)}")
    names = {field.name for field in fields(Sampling)}
    try:
        sampling = msgspec.convert({name: value for name, value in options.items() if name in names}, Sampling)
    except msgspec.ValidationError as error:
        why, _, at = str(error).partition(" - at `$.")
        raise ValueError(f"{at.rstrip('`')}: {why[:1].lower()}{why[1:]}") from None
    for name, low, high in (
        ("max_tokens", 1, inf),
        ("temperature", 0, inf),
        ("top_k", 0, inf),
        ("top_p", 0, 1),
        ("min_p", 0, 1),
    ):
        if not low <= getattr(sampling, name) <= high:
            raise ValueError(f"{name}: {getattr(sampling, name)} is not between {low} and {high}")
    return sampling
