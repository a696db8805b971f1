"""One answer as it comes: text, log probabilities, how it ended."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from stepwell.abc.codec import Codec
from stepwell.engine.messages import Output
from stepwell.engine.text import AnswerText
from stepwell.types import Cached, TokenLogprob
from stepwell_server.errors import bad, unavailable

LEAST = -9999.0
"""Stands for the log probability of what cannot be: JSON has no infinity."""


@dataclass(frozen=True, slots=True)
class Scored:
    """A token of an answer with its log probability, and where its text starts in the answer."""

    token: int
    raw: bytes
    logprob: float
    top: tuple[tuple[bytes, float], ...]
    offset: int

    @property
    def text(self) -> str:
        """The token as text; bytes of an unfinished character become a replacement character."""
        return self.raw.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class Delta:
    """What an output adds to an answer."""

    text: str = ""
    scored: tuple[Scored, ...] = ()
    finish: str | None = None


@dataclass(slots=True)
class Choice:
    """One answer. `take` every output of its request; once `over`, only the last output is awaited, for its counts."""

    index: int
    codec: Codec
    stop: Sequence[str]
    score: bool
    ends: frozenset[int]
    """Tokens that end the answer and are no part of it."""
    finish: str | None = None
    tokens: int = 0
    cached: Cached = field(default_factory=Cached)
    _answer: AnswerText = field(init=False)
    _scorer: _Scorer = field(init=False)

    def __post_init__(self) -> None:
        self._answer = AnswerText(self.codec, self.stop)
        self._scorer = _Scorer(self.codec)

    @property
    def over(self) -> bool:
        """Whether nothing more can be added."""
        return self.finish is not None

    @property
    def stopped(self) -> bool:
        """Whether a stop string ended it: the engine does not know yet."""
        return self._answer.stopped is not None

    def take(self, output: Output) -> Delta:
        """Add an output. Raises ApiError where it says that there is no answer."""
        if output.finish is not None:
            self.cached = output.cached
            if not self.over:
                raise_unless_answer(output)
        if self.over:
            return Delta()
        text = self._answer.feed(output.tokens)
        if output.finish is not None:
            text += self._answer.end()
        self.tokens = self._answer.used if self.stopped else self.tokens + len(output.tokens)
        self.finish = "stop" if self.stopped else output.finish
        if not self.score:
            return Delta(text, (), self.finish)
        self._scorer.add(output.tokens, output.logprobs or ())
        return Delta(text, self._scorer.release(len(text), self.over and not self.stopped, self.ends), self.finish)


class _Scorer:
    """Hands out log probabilities together with the text they belong to: tokens of a stop string never come out."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._stream = codec.stream()
        self._decoded = 0
        self._shown = 0
        self._waiting: deque[Scored] = deque()

    def add(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprob]) -> None:
        piece = self._codec.piece
        for token, scored in zip(tokens, logprobs, strict=False):
            top = tuple((piece(other), max(value, LEAST)) for other, value in scored.top)
            self._waiting.append(Scored(token, piece(token), max(scored.logprob, LEAST), top, self._decoded))
            self._decoded += len(self._stream.add((token,)))

    def release(self, shown: int, everything: bool, ends: frozenset[int]) -> tuple[Scored, ...]:
        self._shown += shown
        out = []
        while self._waiting and (everything or self._waiting[0].offset < self._shown):
            out.append(self._waiting.popleft())
        if everything and out and out[-1].token in ends:
            out.pop()
        return tuple(out)


def raise_unless_answer(output: Output) -> None:
    """Turn an output without an answer into the error that says so."""
    why = output.error or "no reason given"
    match output.finish:
        case "refused":
            raise unavailable(why, "not_now", 1) if output.later else bad(None, why, "refused_by_engine")
        case "error":
            raise unavailable(f"the engine failed: {why}", "engine_error", 1)
        case "abort":
            raise unavailable(output.error or "the engine gave the request up", "aborted", 1)
