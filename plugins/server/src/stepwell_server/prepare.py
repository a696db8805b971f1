"""From a checked body to the engine's requests: tokens, digests, one child a prompt and choice.

A batch is never sliced: every child is built whole from the body, so no field can be lost on the way.
"""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from stepwell.abc.codec import Codec
from stepwell.cache.keys import namespace, page_digests
from stepwell.engine.messages import Hello
from stepwell.schedule.request import Request
from stepwell.types import TOKEN_BYTES, Sampling
from stepwell_server.body import Body, ChatBody, CompletionBody, TextPart
from stepwell_server.errors import bad
from stepwell_server.placing import priority, routing_keys, tenant
from stepwell_server.settings import TenantFrom

T = TypeVar("T")

COMPLETION_TOKENS = 16
"""Answer length of a completion that names none, as in the API it follows."""
INLINE_CHARS = 4096
INLINE_PAGES = 64
"""Shorter prompts are encoded and hashed on the event loop: a thread would cost more."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt: its tokens, and its text where the answer has to repeat it."""

    tokens: bytes
    field: str
    """Where in the body it stands, for errors."""
    text: str = ""

    @property
    def length(self) -> int:
        """In tokens."""
        return len(self.tokens) // TOKEN_BYTES


@dataclass(frozen=True, slots=True)
class Asked:
    """Everything that one HTTP request asks of the engine."""

    id: str
    prompts: tuple[Prompt, ...]
    n: int
    requests: tuple[Request, ...]
    """Prompt by prompt, `n` each; the place is the choice's index."""
    stop: tuple[str, ...]
    logprobs: int | None
    stream: bool
    usage: bool
    """Whether a stream ends with a usage chunk."""

    def prompt_of(self, index: int) -> Prompt:
        """The prompt that a choice answers."""
        return self.prompts[index // self.n]


@dataclass(frozen=True, slots=True)
class Limits:
    """What the settings allow one request."""

    choices: int
    default_tokens: int | None
    tenant: TenantFrom = "user"
    """Whom to believe about whose a request is."""


@dataclass(frozen=True, slots=True)
class Caller:
    """What a request says beside its body: its headers, and the name of the API key that it showed."""

    headers: Mapping[str, str] = field(default_factory=dict)
    key: str | None = None


class Preparer:
    """Makes the engine's requests out of bodies."""

    def __init__(self, codec: Codec, limits: Limits, executor: Executor) -> None:
        self._codec = codec
        self._limits = limits
        self._executor = executor

    async def chat(self, body: ChatBody, hello: Hello, caller: Caller) -> Asked:
        """The requests of a chat body."""
        messages = [{"role": _role(m.role), "content": _text(m.content)} for m in body.messages]
        size = sum(len(message["content"]) for message in messages)
        try:
            tokens = await self._off_loop(size, lambda: self._codec.chat(messages))
        except ValueError as error:
            raise bad("messages", f"messages: {error}") from None
        wanted = body.max_completion_tokens or body.max_tokens
        logprobs = (body.top_logprobs or 0) if body.logprobs else None
        return await self._asked("chatcmpl", body, hello, caller, [Prompt(tokens, "messages")], wanted, logprobs)

    async def completion(self, body: CompletionBody, hello: Hello, caller: Caller) -> Asked:
        """The requests of a completion body."""
        given = split(body.prompt, hello.vocab)
        self._count(len(given), body.n or 1)
        size = sum(len(text) for _, text in given if isinstance(text, str))
        prompts = await self._off_loop(size, lambda: [self._prompt(at, one, bool(body.echo)) for at, one in given])
        return await self._asked("cmpl", body, hello, caller, prompts, body.max_tokens, body.logprobs)

    def _prompt(self, at: str, given: str | bytes, echo: bool) -> Prompt:
        if isinstance(given, str):
            return Prompt(self._codec.encode(given), at, given if echo else "")
        return Prompt(given, at, self._decode(given) if echo else "")

    def _decode(self, tokens: bytes) -> str:
        stream = self._codec.stream()
        return stream.add(np.frombuffer(tokens, dtype="<i4").tolist()) + stream.end()

    async def _asked(
        self,
        prefix: str,
        body: Body,
        hello: Hello,
        caller: Caller,
        prompts: Sequence[Prompt],
        wanted: int | None,
        logprobs: int | None,
    ) -> Asked:
        n = body.n or 1
        self._count(len(prompts), n)
        default = COMPLETION_TOKENS if prefix == "cmpl" else self._limits.default_tokens
        lengths = [max_tokens(prompt, wanted, default, hello) for prompt in prompts]
        keys = routing_keys(body, caller.headers, len(prompts))
        urgency = priority(body, caller.headers)
        whose = tenant(body, caller.headers, caller.key, self._limits.tenant)
        ids = stop_ids(body, hello.vocab)
        space = namespace({**hello.namespace, "salt": body.cache_salt})
        digests = await self._digests(space, prompts, hello)
        unique = uuid.uuid4().hex
        requests = tuple(
            Request(
                rid=f"{unique}-{i * n + choice}",
                namespace=space,
                tokens=prompt.tokens,
                digests=digests[i],
                sampling=sampling(body, lengths[i], logprobs, ids, choice),
                priority=urgency,
                store=body.cache_store is not False,
                ttl=body.cache_ttl,
                routing_key=keys[i],
                tenant=whose,
            )
            for i, prompt in enumerate(prompts)
            for choice in range(n)
        )
        stop = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
        usage = body.stream_options is not None and bool(body.stream_options.include_usage)
        return Asked(f"{prefix}-{unique}", tuple(prompts), n, requests, stop, logprobs, bool(body.stream), usage)

    def _count(self, prompts: int, n: int) -> None:
        if prompts * n > self._limits.choices:
            field = "n" if prompts == 1 else "prompt"
            raise bad(field, f"{field}: {prompts} prompts times n={n} is more than {self._limits.choices} answers")

    async def _digests(self, space: bytes, prompts: Sequence[Prompt], hello: Hello) -> list[bytes]:
        if not hello.storage:
            return [b""] * len(prompts)
        pages = sum(prompt.length for prompt in prompts) // hello.page_size
        size = INLINE_CHARS + 1 if pages > INLINE_PAGES else 0
        return await self._off_loop(
            size, lambda: [page_digests(space, prompt.tokens, hello.page_size) for prompt in prompts]
        )

    async def _off_loop(self, size: int, work: Callable[[], T]) -> T:
        if size <= INLINE_CHARS:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)


# --- pure parts --------------------------------------------------------------------------------------------------


def split(prompt: str | list[str | int | list[int]], vocab: int) -> list[tuple[str, str | bytes]]:
    """The prompts of a completion with their place in the body: text, or int32 bytes of token ids."""
    if isinstance(prompt, str):
        return [("prompt", prompt)]
    if all(isinstance(one, int) for one in prompt):
        return [("prompt", _ids([one for one in prompt if isinstance(one, int)], "prompt", vocab))]
    found: list[tuple[str, str | bytes]] = []
    for i, one in enumerate(prompt):
        at = f"prompt[{i}]"
        if isinstance(one, int):
            raise bad(at, f"{at}: token ids and texts or lists are mixed; give one list of ids for each prompt")
        found.append((at, one if isinstance(one, str) else _ids(one, at, vocab)))
    return found


def _ids(tokens: Sequence[int], at: str, vocab: int) -> bytes:
    ids = np.array(tokens, dtype=np.int64)
    beyond = np.flatnonzero(ids >= vocab)
    if len(beyond):
        raise bad(f"{at}[{beyond[0]}]", f"{at}[{beyond[0]}]: the model has tokens 0 to {vocab - 1}")
    return ids.astype("<i4").tobytes()


def max_tokens(prompt: Prompt, wanted: int | None, default: int | None, hello: Hello) -> int:
    """How long the answer may get. Refuses what the model's context cannot hold.

    An answer without a length gets what is left of the largest request; where nothing is, the engine says so best.
    """
    context = hello.context
    room = context - prompt.length
    if prompt.length == 0:
        raise bad(prompt.field, f"{prompt.field} is empty")
    if room < 1:
        raise bad(
            prompt.field,
            f"{prompt.field}: {prompt.length} tokens leave no room for an answer in a context of {context}",
            "context_length_exceeded",
        )
    if wanted is not None and wanted > room:
        raise bad(
            "max_tokens",
            f"max_tokens: {prompt.length} prompt tokens and {wanted} to answer exceed the context of {context}",
            "context_length_exceeded",
        )
    left = context if hello.largest is None else hello.largest - prompt.length
    return wanted or min(default or room, room, left if left > 0 else room)


def stop_ids(body: Body, vocab: int) -> tuple[int, ...]:
    """Token ids that end an answer besides the model's own."""
    for i, token in enumerate(body.stop_token_ids or ()):
        if token >= vocab:
            raise bad(f"stop_token_ids[{i}]", f"stop_token_ids[{i}]: the model has tokens 0 to {vocab - 1}")
    return tuple(body.stop_token_ids or ())


def sampling(body: Body, max_new: int, logprobs: int | None, ids: tuple[int, ...], choice: int) -> Sampling:
    """How a choice is sampled; without a temperature as in the API it follows, at 1."""
    return Sampling(
        max_tokens=max_new,
        temperature=1.0 if body.temperature is None else body.temperature,
        top_k=max(0, body.top_k or 0),
        top_p=1.0 if body.top_p is None else body.top_p,
        min_p=body.min_p or 0.0,
        seed=None if body.seed is None else choice_seed(body.seed, choice),
        repetition_penalty=1.0 if body.repetition_penalty is None else body.repetition_penalty,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        logprobs=logprobs,
        stop_ids=ids,
        ignore_eos=bool(body.ignore_eos),
    )


def choice_seed(seed: int, choice: int) -> int:
    """The seed of a choice: the given one for the first, so that it equals the answer to n=1."""
    if choice == 0:
        return seed & (2**63 - 1)
    digest = hashlib.sha256(f"{seed}/{choice}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def _role(role: str) -> str:
    return "system" if role == "developer" else role


def _text(content: str | Sequence[TextPart] | None) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part.text or "" for part in content or ())
