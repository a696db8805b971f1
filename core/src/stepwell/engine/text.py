"""The text of one answer: tokens in, text out, ended by the stop string that is complete first."""

from __future__ import annotations

from collections.abc import Sequence

from stepwell.abc.codec import Codec


class AnswerText:
    """Decodes an answer as it comes and watches for stop strings.

    Text that may turn out to be the start of a stop string is held back until it is known. The stop string itself,
    and whatever follows it, is never part of the text.
    """

    def __init__(self, codec: Codec, stop: Sequence[str] = ()) -> None:
        self._stream = codec.stream()
        self._stops = tuple(text for text in stop if text)
        self._held = ""
        self.stopped: str | None = None
        """The stop string that ended the answer."""
        self.used = 0
        """Tokens that the answer consists of so far: those after a stop string do not count."""

    def feed(self, tokens: Sequence[int]) -> str:
        """Text that became certain with these tokens. Nothing more comes once `stopped` is set."""
        if not self._stops:
            self.used += len(tokens)
            return self._stream.add(tokens)
        certain = ""
        for token in tokens:  # one by one, so that `used` is right where a stop string ends
            if self.stopped is not None:
                break
            self.used += 1
            certain += self._pass(self._stream.add((token,)))
        return certain

    def end(self) -> str:
        """What was held back, once the answer has ended."""
        if self.stopped is not None:
            return ""
        certain = self._pass(self._stream.end())
        if self.stopped is None:
            certain, self._held = certain + self._held, ""
        return certain

    def _pass(self, text: str) -> str:
        held = self._held + text
        found = [(held.find(stop), stop) for stop in self._stops if stop in held]
        if found:
            # What is complete first counts, so that the answer does not depend on how the text is cut into tokens.
            at, self.stopped = min(found, key=lambda one: (one[0] + len(one[1]), one[0]))
            self._held = ""
            return held[:at]
        keep = max((_overlap(held, stop) for stop in self._stops), default=0)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that `stop` starts with."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
