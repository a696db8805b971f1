"""What requests answered, as far as a trace of block ids tells: the prompt that goes on behind one has its answer.

In such traces the last block of a prompt is partial, and the next turn of the conversation, in which question and
answer fill whole blocks, knows it by another id. Taken as it is, no prompt ever matches past the last whole block of
the turn before; what is kept at the end of an answer is then never found. A prompt is taken to go on behind a request
where it has that request's last whole block, which nobody had before, and is long enough for question and answer; of
several the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stepwell.errors import ConfigError
from stepwell.replay.trace import Arrival


def with_answers(trace: Sequence[Arrival]) -> list[Arrival]:
    """The same requests; those that another goes on behind have its tokens for their last block and their answer."""
    if trace[0].block == 1:
        raise ConfigError("--with-answers is for traces of block ids; leave it out for this one, which has text")
    told = list(trace)
    for number, next_turn in sorted(_next_turns(trace).items(), reverse=True):
        told[number] = _continued(told[number], told[next_turn])
    return told


def _next_turns(trace: Sequence[Arrival]) -> dict[int, int]:
    """By number of a request, that of the one that goes on behind it."""
    known: set[int] = set()
    ends: dict[int, int] = {}
    found: dict[int, int] = {}
    for number, arrival in enumerate(trace):
        ids = arrival.ids.tolist()
        for block in reversed(ids):
            before = ends.get(block)
            if before is not None and _holds(arrival, trace[before]):
                found[before] = number
                del ends[block]
                break
        whole = arrival.input_length // arrival.block
        if whole and ids[whole - 1] not in known:
            ends[ids[whole - 1]] = number
        known.update(ids)
    return found


def _holds(arrival: Arrival, before: Arrival) -> bool:
    return arrival.input_length >= before.input_length + before.output_length


def _continued(arrival: Arrival, later: Arrival) -> Arrival:
    start, end = arrival.input_length, arrival.input_length + arrival.output_length
    answer: tuple[int, ...] = ()
    for at in range(start // arrival.block, -(-end // arrival.block)):
        low, high = max(start, at * arrival.block), min(end, (at + 1) * arrival.block)
        answer += (int(later.ids[at]),) * (high - low)
    return replace(arrival, ids=later.ids[: len(arrival.ids)], answer=answer)
