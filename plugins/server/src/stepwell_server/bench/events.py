"""The events of a streamed answer: what counts as an arrival of tokens, and what is no such stream."""

from __future__ import annotations

import msgspec

from stepwell_server.bench.http import Broken
from stepwell_server.bench.samples import Sample

MOST_LINE = 1 << 22
"""Bytes of a line without an end that are no event any more."""
SHOWN = 100
"""Letters of a server's own words in a reason."""


class Details(msgspec.Struct):
    """`prompt_tokens_details`."""

    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    """`usage`."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: Details | None = None


class Delta(msgspec.Struct):
    """What a chunk adds to a message; servers that show a model's thoughts have them beside."""

    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class Choice(msgspec.Struct):
    """A choice's share of a chunk, of either route."""

    text: str | None = None
    delta: Delta | None = None
    finish_reason: str | None = None


class Chunk(msgspec.Struct):
    """One event."""

    choices: list[Choice] = []
    usage: Usage | None = None
    error: object = None


class Failure(msgspec.Struct):
    """The object of an error."""

    message: str = ""
    code: str | int | None = None


_chunk = msgspec.json.Decoder(Chunk)


class Stream:
    """Reads server-sent events into a sample.

    Each `data` line is an event: the API has no event of several lines, and a token should not wait for the empty line
    after it.
    """

    def __init__(self, sample: Sample) -> None:
        self._sample = sample
        self._left = b""
        self._finished: float | None = None
        self._usage: Usage | None = None
        self.texts: list[str] = []

    def take(self, data: bytes, at: float) -> bool:
        """A piece of the body; answers whether `[DONE]` has come. Raises Broken."""
        *lines, self._left = (self._left + data).split(b"\n")
        if len(self._left) > MOST_LINE:
            raise Broken("malformed events: a line has no end")
        return any([self._line(line.rstrip(b"\r"), at) for line in lines])

    def end(self, at: float) -> None:
        """The answer has ended. Raises Broken where its end was missing."""
        if self._left.strip():
            self._line(self._left.strip(), at)
        if self._finished is None:
            raise Broken("the stream ended without its end")
        sample, usage = self._sample, self._usage or Usage()
        told = usage.completion_tokens
        if not sample.arrivals and told:  # tokens without any text
            self._arrival(self._finished)
        if not sample.arrivals:
            raise Broken("an answer without a token")
        sample.end = max(self._finished, sample.arrivals[-1])
        sample.output = told if told is not None else len(sample.arrivals)
        sample.prompt = usage.prompt_tokens
        sample.cached = usage.prompt_tokens_details.cached_tokens if usage.prompt_tokens_details else None

    def _line(self, line: bytes, at: float) -> bool:
        if not line.startswith(b"data:"):
            return False  # a comment, an event's name, or nothing
        data = line[5:].strip()
        if data == b"[DONE]":
            return True
        try:
            chunk = _chunk.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise Broken("malformed events: not the JSON of a chunk") from None
        if chunk.error is not None:
            raise Broken(f"error in the stream: {failure_of(chunk.error)}")
        self._usage = chunk.usage or self._usage
        for choice in chunk.choices[:1]:
            self._choice(choice, at)
        return False

    def _choice(self, choice: Choice, at: float) -> None:
        delta = choice.delta or Delta()
        text = choice.text or delta.content or ""
        # A token can have no text of its own yet, half a letter for one; a chunk that only opens or ends has no token.
        if text or delta.reasoning_content or delta.reasoning or not (delta.role or choice.finish_reason):
            self._arrival(at)
        self.texts.append(text)
        if choice.finish_reason is not None:
            self._finished = at

    def _arrival(self, at: float) -> None:
        self._sample.arrivals.append(at)
        self._sample.counts.append(1)


def refusal(status: int, body: bytes, wait: float) -> str:
    """An answer that is no stream, as a reason."""
    if status == 200:
        return "not a stream of events"
    try:
        fields = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        fields = None
    told = failure_of(fields.get("error", fields) if isinstance(fields, dict) else None)
    return f"HTTP {status}" + (f": {told}" if told else "") + (f" (retry after {wait:g} s)" if wait else "")


def failure_of(error: object) -> str:
    """A server's own words, shortened."""
    try:
        failure = msgspec.convert(error, Failure)
    except msgspec.ValidationError:
        return str(error)[:SHOWN] if isinstance(error, str) else ""
    return " ".join((failure.message or str(failure.code or "")).split())[:SHOWN]
