"""Answers into the bytes of either route."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
from msgspec import UNSET, UnsetType

from stepwell_server.choice import Choice, Delta, Scored
from stepwell_server.prepare import Asked
from stepwell_server.shapes import (
    Chat,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatDelta,
    ChatLogprob,
    ChatLogprobs,
    ChatMessage,
    PromptDetails,
    Text,
    TextChoice,
    TextLogprobs,
    Tiers,
    TopLogprob,
    Usage,
)

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Head:
    """What every object of one answer says."""

    id: str
    created: int
    model: str
    fingerprint: str


@dataclass(slots=True)
class Whole:
    """A finished answer."""

    text: list[str] = field(default_factory=list)
    scored: list[Scored] = field(default_factory=list)

    def add(self, delta: Delta) -> None:
        self.text.append(delta.text)
        self.scored.extend(delta.scored)


class Format(Protocol):
    """How one route puts its answers."""

    def whole(self, choices: Sequence[Choice], wholes: Sequence[Whole], usage: Usage) -> bytes:
        """All of it."""

    def first(self, index: int) -> bytes | None:
        """The chunk that opens a choice, if there is one."""

    def chunk(self, index: int, delta: Delta) -> bytes:
        """A piece of a choice."""

    def last(self, usage: Usage) -> bytes:
        """The chunk that tells the usage."""


def usage_of(asked: Asked, choices: Sequence[Choice]) -> Usage:
    """Each prompt counts once, however many answers it gets; it was cached as far as its first answer found it."""
    prompt = sum(one.length for one in asked.prompts)
    answer = sum(choice.tokens for choice in choices)
    firsts = [choice.cached for choice in choices[:: asked.n]]
    tiers = Tiers(*(sum(getattr(one, tier) for one in firsts) for tier in ("device", "host", "storage")))
    cached = tiers.device + tiers.host + tiers.storage
    return Usage(prompt, answer, prompt + answer, PromptDetails(cached, tiers))


class ChatFormat:
    """/v1/chat/completions."""

    def __init__(self, asked: Asked, head: Head) -> None:
        self._asked, self._head = asked, head
        self._usage: UnsetType | None = None if asked.usage else UNSET

    def whole(self, choices: Sequence[Choice], wholes: Sequence[Whole], usage: Usage) -> bytes:
        answers = [
            ChatChoice(
                choice.index,
                ChatMessage("assistant", "".join(whole.text)),
                self._logprobs(whole.scored),
                choice.finish or "stop",
            )
            for choice, whole in zip(choices, wholes, strict=True)
        ]
        head = self._head
        return _encode(Chat(head.id, head.created, head.model, head.fingerprint, answers, usage))

    def first(self, index: int) -> bytes | None:
        return self._chunk([ChatChunkChoice(index, ChatDelta("assistant", ""))])

    def chunk(self, index: int, delta: Delta) -> bytes:
        text = delta.text or UNSET
        scored = self._logprobs(delta.scored) if delta.scored else None
        return self._chunk([ChatChunkChoice(index, ChatDelta(content=text), scored, delta.finish)])

    def last(self, usage: Usage) -> bytes:
        return self._chunk([], usage)

    def _chunk(self, choices: list[ChatChunkChoice], usage: Usage | None = None) -> bytes:
        head = self._head
        told = self._usage if usage is None else usage
        return _encode(ChatChunk(head.id, head.created, head.model, head.fingerprint, choices, told))

    def _logprobs(self, scored: Sequence[Scored]) -> ChatLogprobs | None:
        if self._asked.logprobs is None:
            return None
        return ChatLogprobs(
            [
                ChatLogprob(one.text, one.logprob, list(one.raw), [_top(raw, value) for raw, value in one.top])
                for one in scored
            ]
        )


class TextFormat:
    """/v1/completions."""

    def __init__(self, asked: Asked, head: Head) -> None:
        self._asked, self._head = asked, head
        self._usage: UnsetType | None = None if asked.usage else UNSET

    def whole(self, choices: Sequence[Choice], wholes: Sequence[Whole], usage: Usage) -> bytes:
        answers = [
            TextChoice(
                choice.index,
                self._asked.prompt_of(choice.index).text + "".join(whole.text),
                self._logprobs(whole.scored),
                choice.finish,
            )
            for choice, whole in zip(choices, wholes, strict=True)
        ]
        return self._chunk(answers, usage)

    def first(self, index: int) -> bytes | None:
        echo = self._asked.prompt_of(index).text
        return self._chunk([TextChoice(index, echo, None, None)]) if echo else None

    def chunk(self, index: int, delta: Delta) -> bytes:
        scored = self._logprobs(delta.scored) if delta.scored else None
        return self._chunk([TextChoice(index, delta.text, scored, delta.finish)])

    def last(self, usage: Usage) -> bytes:
        return self._chunk([], usage)

    def _chunk(self, choices: list[TextChoice], usage: Usage | None = None) -> bytes:
        head = self._head
        told = self._usage if usage is None else usage
        return _encode(Text(head.id, head.created, head.model, head.fingerprint, choices, told))

    def _logprobs(self, scored: Sequence[Scored]) -> TextLogprobs | None:
        if self._asked.logprobs is None:
            return None
        return TextLogprobs(
            [one.text for one in scored],
            [one.logprob for one in scored],
            [{_plain(raw): value for raw, value in one.top} for one in scored] if self._asked.logprobs else None,
            [one.offset for one in scored],
        )


def _top(raw: bytes, logprob: float) -> TopLogprob:
    return TopLogprob(_plain(raw), logprob, list(raw))


def _plain(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
