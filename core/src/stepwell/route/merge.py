"""What several engines say, as one would: counts are added up, what is no count only told where it makes sense."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from stepwell.engine.messages import ATTACHED, Hello, Pulse
from stepwell.engine.stats import Told
from stepwell.engine.tally import Waits

LARGEST = ("_worst",)
LEAST = (ATTACHED, "_used")
"""How names of numbers end that are no counts: the worst of something; whether all have it, and shares."""


def merged(answers: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """Answers to one question as one: numbers added up, objects merged, the first text, the rest where all agree."""
    names = dict.fromkeys(name for answer in answers for name in answer)
    found = {name: _one(name, [answer[name] for answer in answers if name in answer]) for name in names}
    return {name: value for name, value in found.items() if value is not None}


def _one(name: str, values: Sequence[object]) -> object:
    if all(isinstance(value, Mapping) for value in values):
        return merged([value for value in values if isinstance(value, Mapping)])
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(numbers) == len(values):
        return max(numbers) if name.endswith(LARGEST) else min(numbers) if name.endswith(LEAST) else sum(numbers)
    if all(isinstance(value, bool) for value in values):
        return all(values)
    told = [value for value in values if value] or values
    if all(isinstance(value, str) for value in told):
        return told[0]
    return told[0] if all(value == told[0] for value in told) else None


def pulse_of(pulses: Sequence[Pulse]) -> Pulse:
    """One sign of life for all."""
    values: dict[str, float] = {}
    for name, value in merged([pulse.values for pulse in pulses]).items():
        assert isinstance(value, int | float)
        values[name] = float(value)
    return Pulse(
        ticks=sum(pulse.ticks for pulse in pulses),
        running=sum(pulse.running for pulse in pulses),
        waiting=sum(pulse.waiting for pulse in pulses),
        values=values,
        told=_told([pulse.told for pulse in pulses]),
    )


def _told(told: Sequence[Told]) -> Told:
    counts = tuple(sum(column) for column in zip(*(one.waits.counts for one in told), strict=True))
    by: dict[str, dict[str, dict[str, float]]] = {}
    for one in told:
        for kind, rows in one.by.items():
            into = by.setdefault(kind, {})
            for name, row in rows.items():
                known = into.setdefault(name, {})
                known.update({what: known.get(what, 0.0) + value for what, value in row.items()})
    fault = next((one.last_fault for one in told if one.last_fault), "")
    return Told(Waits(counts, sum(one.waits.seconds for one in told)), by, fault)


def hello_of(hellos: Sequence[Hello]) -> Hello:
    """What all of them are; `storage` is set, since a router needs digests as a storage does."""
    first = hellos[0]
    largest = [hello.largest for hello in hellos if hello.largest is not None]
    return msgspec.structs.replace(first, storage=True, largest=min(largest) if largest else None)
