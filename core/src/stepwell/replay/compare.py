"""`--compare` and `--sweep`: which replays there are to run, and how each stands to its baseline. Pure data.

A policy is written `NAME`, or `NAME:KEY=VALUE:KEY=VALUE` with settings of its own; commas part policies and values, but
not inside brackets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from stepwell.coerce import guess
from stepwell.errors import ConfigError
from stepwell.replay.result import Result, percentiles

MOST = 256
"""Combinations; more is a slip of the keyboard."""
SPEED = "speed"
"""What can be swept and is no setting: arrivals come so many times as fast."""
FASTEST = 1e9
"""Beyond it, or so much slower than recorded, is no replay of anything."""
USE = "schedule.use"

Values = tuple[tuple[str, str], ...]
"""Settings, each with its value as it was written."""


@dataclass(frozen=True, slots=True)
class Policy:
    """A schedule policy to compare, with settings of its own."""

    name: str
    settings: Values = ()

    def __str__(self) -> str:
        return ":".join((self.name, *(f"{key.removeprefix('schedule.')}={value}" for key, value in self.settings)))


@dataclass(frozen=True, slots=True)
class Sweep:
    """One setting and the values to try."""

    key: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Combination:
    """One replay of a comparison: a policy, where policies are compared, and a value of each swept setting."""

    policy: Policy | None
    swept: Values = ()

    @property
    def name(self) -> str:
        """As tables, messages and pages say it."""
        parts = [str(self.policy)] if self.policy else []
        return " ".join(parts + [f"{short(key)}={value}" for key, value in self.swept])

    @property
    def settings(self) -> Values:
        """Everything that it sets."""
        own = ((USE, self.policy.name), *self.policy.settings) if self.policy else ()
        return (*own, *self.swept)

    @property
    def sets(self) -> tuple[str, ...]:
        """Its settings as `--set` takes them."""
        return tuple(f"{key}={value}" for key, value in self.settings if key != SPEED)

    @property
    def speed(self) -> float:
        """How many times as fast its arrivals come."""
        return float(dict(self.swept).get(SPEED, 1.0))


Outcome = tuple[Combination, Result]


def short(key: str) -> str:
    """A setting without its section."""
    return key.split(".", 1)[-1]


def policies(texts: Sequence[str]) -> list[Policy]:
    """What `--compare` names, in order; the first is the baseline."""
    found = [_policy(part) for text in texts for part in _split(text, ",")]
    for number, policy in enumerate(found):
        if policy in found[:number]:
            raise ConfigError(f"--compare names {policy} twice")
    return found


def sweeps(texts: Sequence[str]) -> list[Sweep]:
    """What `--sweep` says, each a dimension of the grid."""
    found = [_sweep(text) for text in texts]
    for number, sweep in enumerate(found):
        if sweep.key in [other.key for other in found[:number]]:
            raise ConfigError(f"--sweep {sweep.key} is given twice; write all its values into one")
    return found


def grid(
    compared: Sequence[Policy], swept: Sequence[Sweep], knows: Callable[[Policy, str], bool] = lambda policy, key: True
) -> list[Combination]:
    """Every policy with every value.

    `knows` says whether a policy has a setting: where it has not the one that is swept, it runs once for all values.
    """
    for one in compared:
        for key, _ in one.settings:
            if key in [sweep.key for sweep in swept]:
                raise ConfigError(f"--compare {one} sets {key}, which --sweep changes as well; leave one out")
    for sweep in swept:
        if compared and sweep.key.startswith("schedule.") and not any(knows(policy, sweep.key) for policy in compared):
            raise ConfigError(f"--sweep {sweep.key}: no policy that is compared has such a setting")
    values = list(product(*([(sweep.key, value) for value in sweep.values] for sweep in swept)))
    wanted = len(values) * max(1, len(compared))
    if wanted > MOST:
        raise ConfigError(f"these are {wanted:,} combinations, more than the {MOST} that one comparison may have")
    every: list[Combination] = []
    which: Sequence[Policy | None] = compared or [None]
    for at in values:
        for policy in which:
            own = tuple(pair for pair in at if policy is None or _applies(policy, pair[0], knows))
            every.append(Combination(policy, own))
    return list(dict.fromkeys(every))


def _applies(policy: Policy, key: str, knows: Callable[[Policy, str], bool]) -> bool:
    return not key.startswith("schedule.") or knows(policy, key)


def _policy(text: str) -> Policy:
    name, *rest = _split(text, ":")
    if not name:
        raise ConfigError("--compare has an empty name; write policies as lpm,fcfs")
    settings: list[tuple[str, str]] = []
    for one in rest:
        key, equals, value = (part.strip() for part in one.partition("="))
        if not key or not equals or key == "use":
            raise ConfigError(f"--compare {text!r}: write a policy's settings as {name}:key=value:key=value")
        if f"schedule.{key}" in dict(settings):
            raise ConfigError(f"--compare {text!r} sets {key} twice; leave one out")
        settings.append((f"schedule.{key}", value))
    return Policy(name, tuple(settings))


def _sweep(text: str) -> Sweep:
    key, equals, rest = (part.strip() for part in text.partition("="))
    values = tuple(_split(rest, ","))
    if not equals or not all(values) or (key != SPEED and not all(["." in key, *key.split(".")])):
        raise ConfigError(f"--sweep {text}: write it as section.key=value,value")
    if key == USE:
        raise ConfigError(f"--sweep {USE}: name the policies with --compare {rest}")
    if key == "replay.tokenizer":
        raise ConfigError(f"--sweep {key}: every replay has the same tokens; start one after the other")
    if len(set(values)) < len(values):
        raise ConfigError(f"--sweep {text}: names a value twice")
    if key == SPEED and not all(_speed(value) for value in values):
        raise ConfigError(f"--sweep {text}: a speed is a number from {1 / FASTEST:g} to {FASTEST:g}")
    return Sweep(key, values)


def _speed(value: str) -> bool:
    number = guess(value)
    return type(number) in (int, float) and 1 / FASTEST <= number <= FASTEST  # type: ignore[operator]


def _split(text: str, at: str) -> list[str]:
    """Parts between separators, leaving alone those inside brackets."""
    parts, depth = [""], 0
    for char in text:
        depth += (char in "[{") - (char in "]}")
        if char == at and depth <= 0:
            parts.append("")
        else:
            parts[-1] += char
    return [part.strip() for part in parts]


# --- what came of it ---


def baseline(outcomes: Sequence[Outcome], of: Combination) -> Outcome:
    """What a combination is held against: the first policy with the same swept values, else the first of all.

    A policy that lacks a swept setting ran once; it is the baseline for all values of it.
    """
    first = outcomes[0]
    if first[0].policy is None:
        return first
    same = (one for one in outcomes if one[0].policy == first[0].policy and set(one[0].swept) <= set(of.swept))
    return next(same, first)


def ratios(result: Result, base: Result) -> dict[str, float | None]:
    """A result over its baseline, number by number; None where that is 0."""
    ours, theirs = _numbers(result), _numbers(base)
    return {name: round(value / theirs[name], 6) if theirs[name] else None for name, value in ours.items()}


def _numbers(result: Result) -> dict[str, float]:
    ttft, latency = percentiles(result.ttft_s), percentiles(result.latency_s)
    return {
        "ttft_mean": ttft.get("mean", 0.0),
        "ttft_p99": ttft.get("p99", 0.0),
        "latency_mean": latency.get("mean", 0.0),
        "latency_p99": latency.get("p99", 0.0),
        "worst_wait": result.worst_wait_s,
        "hit_share": result.all.share,
        "output_tokens_s": result.throughput["output_tokens_s"],
        "gpu_seconds": result.gpu_seconds,
    }


def document(trace: str, outcomes: Sequence[Outcome]) -> dict[str, object]:
    """The comparison as JSON: each combination with its settings, its result, and its ratios to its baseline."""
    first = outcomes[0][0]
    compared = dict.fromkeys(str(combination.policy) for combination, _ in outcomes if combination.policy)
    return {
        "trace": trace,
        "baseline": str(first.policy) if first.policy else first.name,
        "compared": list(compared),
        "swept": {key: [guess(value) for value in values] for key, values in swept_values(outcomes).items()},
        "combinations": [_entry(outcomes, one) for one in outcomes],
    }


def swept_values(outcomes: Sequence[Outcome]) -> Mapping[str, list[str]]:
    """The swept settings and their values, in order."""
    found: dict[str, dict[str, None]] = {}
    for combination, _ in outcomes:
        for key, value in combination.swept:
            found.setdefault(key, {})[value] = None
    return {key: list(values) for key, values in found.items()}


def _entry(outcomes: Sequence[Outcome], outcome: Outcome) -> dict[str, object]:
    combination, result = outcome
    against, base = baseline(outcomes, combination)
    return {
        "name": combination.name,
        "policy": str(combination.policy) if combination.policy else None,
        "settings": {key: guess(value) for key, value in combination.settings},
        "baseline": against.name,
        "ratios": ratios(result, base),
        "result": result.as_json(),
    }
