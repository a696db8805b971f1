"""What a replay found, and its machine-readable form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

PERCENTILES = (50, 90, 99, 100)
DIRECTIONS = ("load", "save", "store", "fetch")


@dataclass(slots=True)
class Hits:
    """Prompt tokens, and those that came from a tier."""

    input_tokens: int = 0
    device: int = 0
    host: int = 0
    storage: int = 0

    @property
    def total(self) -> int:
        """Hit tokens over all tiers."""
        return self.device + self.host + self.storage

    @property
    def share(self) -> float:
        """Hit tokens over input tokens."""
        return self.total / self.input_tokens if self.input_tokens else 0.0

    def as_json(self) -> dict[str, object]:
        """The stable fields."""
        tiers = {"device": self.device, "host": self.host, "storage": self.storage}
        return {"input_tokens": self.input_tokens, "hit_tokens": tiers, "hit_share": round(self.share, 6)}


@dataclass(slots=True)
class Restorable:
    """How many of the finished requests could go on from where they ended."""

    every: int
    """Finished requests between two counts; 0: none was made."""
    samples: list[int] = field(default_factory=list)
    """Counted along the trace, at its end last."""

    @property
    def last(self) -> int:
        """At the end of the trace."""
        return self.samples[-1] if self.samples else 0

    @property
    def mean(self) -> float:
        """Over all counts."""
        return sum(self.samples) / len(self.samples) if self.samples else 0.0

    def as_json(self) -> dict[str, object]:
        """The stable fields."""
        return {"last": self.last, "mean": round(self.mean, 1), "every": self.every, "samples": self.samples}


@dataclass(slots=True)
class Group:
    """One attention group of the model: what it was given, what it moved, and what it held in the end."""

    layers: int
    token_bytes: int
    page_bytes: int
    device_pages: int
    host_pages: int
    moved: dict[str, int] = field(default_factory=lambda: dict.fromkeys(DIRECTIONS, 0))
    """Bytes in each direction."""
    held: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("device", "host", "storage"), 0))
    """Pages in each tier at the end."""

    def as_json(self) -> dict[str, object]:
        """The stable fields."""
        return {
            "layers": self.layers,
            "token_bytes": self.token_bytes,
            "page_bytes": self.page_bytes,
            "device_pages": self.device_pages,
            "host_pages": self.host_pages,
            "held": {tier: {"pages": n, "bytes": n * self.page_bytes} for tier, n in self.held.items()},
            "bytes_moved": dict(self.moved),
        }


@dataclass(slots=True)
class Result:
    """One replay, whole."""

    all: Hits
    last_half: Hits
    requests: int = 0
    finished: int = 0
    refused: int = 0
    output_tokens: int = 0
    bytes_moved: dict[str, int] = field(default_factory=lambda: dict.fromkeys(DIRECTIONS, 0))
    computed_tokens: int = 0
    """Prompt tokens that were computed, those of retracted requests again."""
    token_bytes: int = 0
    gpu_seconds: float = 0.0
    virtual_s: float = 0.0
    """From the first arrival until nothing was under way, not even a store."""
    answered_s: float = 0.0
    """From the first arrival until the last answer had ended."""
    ttft_s: Sequence[float] = ()
    latency_s: Sequence[float] = ()
    at_s: Sequence[float] = ()
    """Arrival of each finished request, parallel to `ttft_s`."""
    waits_s: Sequence[float] = ()
    """Queue time of each finished request, from its arrival to its first admission; parallel to `ttft_s`."""
    passes_worst: int = 0
    """Times that later requests were admitted before the one that this befell most."""
    retractions: int = 0
    steps: int = 0
    padding_share: float = 0.0
    """Share of the prompt slots that would be empty if each chunk were padded to the longest one of its step."""
    chunk_spread: float = 0.0
    """Standard deviation over mean of the chunks of a step, averaged over the steps that have several."""
    experts_per_step: float = 0.0
    """Experts of a layer that a step reads, mean; 0 for a model without experts."""
    decode_experts: float = 0.0
    """The same of steps that only decode."""
    decode_step_s: float = 0.0
    """Mean seconds of a step that only decodes."""
    policy_faults: int = 0
    """Answers of policies that could not be used, and errors they raised; the default was taken."""
    last_fault: str = ""
    wall_s: float = 0.0
    price_per_hour: float | None = None
    groups: dict[str, Group] = field(default_factory=dict)
    restorable: Restorable | None = None
    setup: dict[str, object] = field(default_factory=dict)

    @property
    def gpu_seconds_per_million(self) -> float:
        """GPU-seconds for a million tokens of input and output."""
        tokens = self.all.input_tokens + self.output_tokens
        return self.gpu_seconds / tokens * 1e6 if tokens else 0.0

    @property
    def money_per_million(self) -> float | None:
        """Price of a million tokens, where an hour of the device has one."""
        if self.price_per_hour is None:
            return None
        return self.gpu_seconds_per_million / 3600 * self.price_per_hour

    @property
    def recomputed_tokens(self) -> int:
        """Tokens that were computed again, for requests that had given their pages to others."""
        return max(0, self.computed_tokens - (self.all.input_tokens - self.all.total))

    @property
    def worst_wait_s(self) -> float:
        """The longest queue time."""
        return float(max(self.waits_s, default=0.0))

    @property
    def throughput(self) -> dict[str, float]:
        """Output tokens, and requests, a second, until the last answer: stores that go on behind it serve nobody."""
        whole = self.answered_s or 1.0
        return {"output_tokens_s": self.output_tokens / whole, "requests_s": self.finished / whole}

    @property
    def blame(self) -> str:
        """What policies did wrong, in one sentence; nothing where they did all right."""
        if not self.policy_faults:
            return ""
        return (
            f"what a policy answered could not be used, {self.policy_faults:,} times, and the default was taken; "
            f"the last: {self.last_fault}"
        )

    def baseline(self) -> dict[str, int]:
        """What the same traffic takes with no cache, or with one that moves each token down once and each hit up again.

        With storage both go over two links.
        """
        every = self.all.input_tokens + self.output_tokens + self.all.total
        links = 2 if self.bytes_moved["store"] else 1
        return {
            "recomputed_without_cache": self.all.input_tokens * self.token_bytes,
            "recomputed": self.computed_tokens * self.token_bytes,
            "moved_if_all_saved_and_loaded": links * every * self.token_bytes,
            "moved": sum(self.bytes_moved.values()),
        }

    def as_json(self) -> dict[str, object]:
        """The stable fields first; times in seconds, sizes in bytes."""
        return {
            "all": self.all.as_json(),
            "last_half": self.last_half.as_json(),
            "bytes_moved": dict(self.bytes_moved),
            "bytes_baseline": self.baseline(),
            "gpu_seconds": round(self.gpu_seconds, 6),
            "gpu_seconds_per_million_tokens": round(self.gpu_seconds_per_million, 6),
            "money_per_million_tokens": self.money_per_million,
            "requests": self.requests,
            "finished": self.finished,
            "refused": self.refused,
            "retractions": self.retractions,
            "recomputed_tokens": self.recomputed_tokens,
            "passes_worst": self.passes_worst,
            "output_tokens": self.output_tokens,
            "computed_tokens": self.computed_tokens,
            "steps": self.steps,
            "virtual_s": round(self.virtual_s, 6),
            "answered_s": round(self.answered_s, 6),
            "ttft_s": percentiles(self.ttft_s),
            "latency_s": percentiles(self.latency_s),
            "waits_s": percentiles(self.waits_s),
            "worst_wait_s": round(self.worst_wait_s, 6),
            "throughput": {name: round(value, 6) for name, value in self.throughput.items()},
            "padding_share": round(self.padding_share, 6),
            "chunk_spread": round(self.chunk_spread, 6),
            "experts_per_step": round(self.experts_per_step, 4),
            "decode_experts": round(self.decode_experts, 4),
            "decode_step_s": round(self.decode_step_s, 9),
            "policy_faults": self.policy_faults,
            "last_fault": self.last_fault,
            "wall_s": round(self.wall_s, 4),
            "groups": {name: group.as_json() for name, group in self.groups.items()},
            **({"restorable": self.restorable.as_json()} if self.restorable else {}),
            "setup": self.setup,
        }


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """Mean and the usual percentiles; empty where there are no values."""
    if not len(values):
        return {}
    found = np.percentile(np.asarray(values), PERCENTILES)
    named = {f"p{p}": round(float(v), 6) for p, v in zip(PERCENTILES, found, strict=True)}
    return {"mean": round(float(np.mean(values)), 6), **named}
