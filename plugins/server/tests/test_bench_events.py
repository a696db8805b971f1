"""Streams as servers send them, and as they should not."""

from __future__ import annotations

import pytest

from stepwell_server.bench.events import Stream, refusal
from stepwell_server.bench.http import Broken, retry_after
from stepwell_server.bench.samples import Sample

CHAT = (
    b': hello\r\n\r\ndata: {"choices":[{"delta":{"role":"assistant","content":""}}]}\r\n\r\n'
    b'data: {"choices":[{"delta":{"content":"one"},"finish_reason":null}],"usage":null}\r\n\r\n'
    b'data: {"choices":[{"delta":{}}]}\r\n\r\n'
    b'event: x\r\ndata:{"choices":[{"delta":{"content":" two"},"finish_reason":"stop","extra":[1]}]}\r\n\r\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":5,'
    b'"prompt_tokens_details":{"cached_tokens":4}}}\r\n\r\ndata: [DONE]\r\n\r\n'
)
FINISH = b'data: {"choices":[{"text":"","finish_reason":"length"}]}\n\n'
PIECE = b'data: {"choices":[{"text":"x","finish_reason":null}]}\n\n'


def read(*pieces: bytes) -> tuple[Sample, Stream]:
    sample = Sample(0.0, 0.0)
    stream = Stream(sample)
    for at, piece in enumerate(pieces, 1):
        stream.take(piece, float(at))
    stream.end(float(len(pieces)))
    return sample, stream


@pytest.mark.parametrize("size", [1, 2, 7, 64, 1000])
def test_however_it_is_cut_a_stream_reads_the_same(size):
    sample, stream = read(*(CHAT[at : at + size] for at in range(0, len(CHAT), size)))
    assert "".join(stream.texts) == "one two"
    assert len(sample.arrivals) == 3  # the second has no text of its own yet; the one that opens has no token
    assert (sample.prompt, sample.output, sample.cached) == (7, 5, 4)


def test_the_last_piece_of_all_is_known():
    stream = Stream(Sample(0.0, 0.0))
    assert not stream.take(PIECE + FINISH, 1.0)
    assert stream.take(b"data: [DONE]\n", 2.0)


def test_without_usage_arrivals_are_tokens():
    sample, _ = read(PIECE, PIECE, FINISH)
    assert (sample.output, sample.prompt, sample.cached) == (2, None, None)
    assert sample.arrivals == [1.0, 2.0]
    assert sample.end == 3.0


def test_an_answer_whose_tokens_have_no_text_still_has_a_first():
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1}}\n\n'
    sample, _ = read(FINISH, usage)
    assert sample.arrivals == [1.0]
    assert sample.output == 1


def test_thoughts_are_tokens():
    sample, _ = read(b'data: {"choices":[{"delta":{"role":"assistant","reasoning_content":"hm"}}]}\n', FINISH)
    assert sample.arrivals == [1.0]


@pytest.mark.parametrize(
    ("pieces", "why"),
    [
        ((PIECE,), "without its end"),
        ((FINISH,), "without a token"),
        ((b"data: {oops\n",), "not the JSON"),
        ((b"data: \xff\xfe\n",), "not the JSON"),
        ((b'data: {"choices":"none"}\n',), "not the JSON"),
        ((b'data: {"error":{"message":"out of   memory","code":500}}\n',), "error in the stream: out of memory"),
        ((b'data: {"error":"no"}\n',), "error in the stream: no"),
        ((b"x" * (5 << 20),), "no end"),
    ],
)
def test_what_is_no_answer_says_why(pieces, why):
    with pytest.raises(Broken, match=why):
        read(*pieces)


def test_refusals_keep_the_servers_words():
    assert refusal(400, b'{"error":{"message":"too long","code":"x"}}', 0.0) == "HTTP 400: too long"
    assert refusal(429, b"<html>", 2.0) == "HTTP 429 (retry after 2 s)"
    assert refusal(500, b'{"error":null}', 0.0) == "HTTP 500"
    assert refusal(404, b'{"message":"not here"}', 0.0) == "HTTP 404: not here"
    assert refusal(200, b"{}", 0.0) == "not a stream of events"
    assert [retry_after({"retry-after": text}) for text in ("3", "-1", "Wed, 21 Oct", "")] == [3.0, 0.0, 0.0, 0.0]
