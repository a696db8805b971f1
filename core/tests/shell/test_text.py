"""Stop strings: found wherever they begin, never shown, and nothing certain is held back."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.abc.codec import Codec, TextStream
from stepwell.engine.text import AnswerText


class Letters(Codec):
    """A token is a code point; the text comes in lumps of `lag` characters."""

    vocab = 0x110000
    eos = ()

    def __init__(self, lag: int = 1) -> None:
        self._lag = lag

    def encode(self, text: str) -> bytes:
        return text.encode("utf-32-le")

    def chat(self, messages: Sequence[Mapping[str, str]]) -> bytes:
        return self.encode("".join(message["content"] for message in messages))

    def stream(self) -> TextStream:
        return _Lumps(self._lag)

    def piece(self, token: int) -> bytes:
        return chr(token).encode()


class _Lumps:
    def __init__(self, lag: int) -> None:
        self._lag, self._held = lag, ""

    def add(self, tokens: Sequence[int]) -> str:
        self._held += "".join(map(chr, tokens))
        whole = len(self._held) // self._lag * self._lag
        out, self._held = self._held[:whole], self._held[whole:]
        return out

    def end(self) -> str:
        return self._held


def fed(text: str, stop: Sequence[str], cuts: Sequence[int] = (), lag: int = 1) -> tuple[list[str], AnswerText]:
    answer = AnswerText(Letters(lag), stop)
    bounds = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    parts = [answer.feed([ord(c) for c in text[a:b]]) for a, b in pairwise(bounds)]
    return [*parts, answer.end()], answer


words = st.text("ab.", min_size=1, max_size=4)


@given(
    text=st.text("ab.", max_size=30),
    stop=st.lists(words, max_size=3),
    cuts=st.lists(st.integers(0, 40), max_size=5),
    lag=st.integers(1, 3),
)
def test_the_text_ends_before_the_stop_string_that_is_complete_first(
    text: str, stop: list[str], cuts: list[int], lag: int
) -> None:
    parts, answer = fed(text, stop, cuts, lag)
    ends = [(text.find(one) + len(one), text.find(one)) for one in stop if one in text]
    assert "".join(parts) == (text[: min(ends)[1]] if ends else text)
    assert (answer.stopped is not None) == bool(ends)


@given(text=st.text("ab", max_size=20), stop=st.lists(words, min_size=1, max_size=2))
def test_only_what_may_still_become_a_stop_string_is_held_back(text: str, stop: list[str]) -> None:
    answer, shown = AnswerText(Letters(), stop), ""
    for at, letter in enumerate(text, 1):
        shown += answer.feed([ord(letter)])
        if answer.stopped is not None:
            return
        held = text[len(shown) : at]
        assert held == "" or any(one.startswith(held) for one in stop)


@pytest.mark.parametrize(("text", "used"), [("one two three", 7), ("one two", 7), ("two", 3), ("none", 4)])
def test_tokens_after_a_stop_string_do_not_count(text: str, used: int) -> None:
    _, answer = fed(text, ["two"])
    assert answer.used == used


@pytest.mark.parametrize("lag", [1, 8])
def test_of_two_that_end_together_the_longer_one_ends_the_answer(lag: int) -> None:
    parts, answer = fed("x THE END y", ["END", "THE END", "END y"], lag=lag)
    assert "".join(parts) == "x "
    assert answer.stopped == "THE END"


def test_nothing_more_comes_after_the_stop() -> None:
    answer = AnswerText(Letters(), ["!"])
    assert answer.feed([ord(c) for c in "ab!cd"]) == "ab"
    assert answer.feed([ord("e")]) == "" and answer.end() == ""
