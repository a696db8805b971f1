"""One answer, put together from the outputs of its request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stepwell.abc.codec import Codec
from stepwell.engine.messages import Output
from stepwell.engine.text import AnswerText
from stepwell.errors import StepwellError
from stepwell.types import Cached, TokenLogprob


class RequestFailed(StepwellError):
    """The engine refused a request, or could not finish it; the message says why."""


@dataclass(frozen=True, slots=True)
class Completion:
    """An answer, and what it took."""

    text: str
    tokens: tuple[int, ...]
    finish_reason: str
    """stop, length or abort."""
    prompt_tokens: int
    completion_tokens: int
    cached: Cached
    """Prompt tokens that were not computed, by the tier they came from."""
    logprobs: tuple[TokenLogprob, ...] | None = None


class Answer:
    """Takes outputs, gives text. Once `stopped` the engine has to be told; its last output still brings the counts."""

    def __init__(self, codec: Codec, stop: Sequence[str] = ()) -> None:
        self._text = AnswerText(codec, stop)
        self._pieces: list[str] = []
        self._tokens: list[int] = []
        self._logprobs: list[TokenLogprob] = []
        self._last: Output | None = None
        self._cut = False

    @property
    def over(self) -> bool:
        """Whether the last output has come."""
        return self._last is not None or self._cut

    @property
    def stopped(self) -> bool:
        """Whether a stop string has come."""
        return self._text.stopped is not None

    def cut(self) -> None:
        """Nobody wants the rest."""
        self._cut = True

    def take(self, output: Output) -> str:
        """Add an output; answers the text that became certain. Raises RequestFailed."""
        if output.finish is not None:
            self._last = output
            if output.finish in ("refused", "error"):
                raise RequestFailed(output.error or "the engine gave no reason")
        if self.stopped:
            return ""
        text = self._text.feed(output.tokens)
        kept = self._text.used - len(self._tokens)
        self._tokens += output.tokens[:kept]
        self._logprobs += (output.logprobs or ())[:kept]
        if output.finish is not None:
            text += self._text.end()
        self._pieces.append(text)
        return text

    def completion(self) -> Completion:
        """The whole answer. Raises RequestFailed where it has not come to its end."""
        if self._last is None:
            raise RequestFailed("the answer was not read to its end")
        return Completion(
            text="".join(self._pieces),
            tokens=tuple(self._tokens),
            finish_reason="stop" if self.stopped else self._last.finish or "",
            prompt_tokens=self._last.prompt_tokens,
            completion_tokens=len(self._tokens),
            cached=self._last.cached,
            logprobs=tuple(self._logprobs) if self._logprobs else None,
        )
