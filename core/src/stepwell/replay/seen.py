"""What a replay notes of its requests and steps as they go by, and what it makes of it in the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import sqrt

from stepwell.abc.runner import StepPlan
from stepwell.engine.brain import ANSWERED
from stepwell.engine.messages import Output
from stepwell.replay.affinity import Experts
from stepwell.replay.result import Result
from stepwell.replay.trace import Arrival


@dataclass(slots=True)
class _Visit:
    """What is known of one request while it is there."""

    number: int
    at: float
    admitted: float | None = None
    """When it first got a slot."""
    first: float | None = None
    """When its first token came."""
    tokens: int = 0


@dataclass(slots=True)
class Visits:
    """Every request from its arrival to its end. Times are of those that finished, as they ended."""

    here: dict[str, _Visit] = field(default_factory=dict)
    at: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    ttft: list[float] = field(default_factory=list)
    latency: list[float] = field(default_factory=list)

    def arrived(self, rid: str, number: int, at: float) -> None:
        """The trace brings a request."""
        self.here[rid] = _Visit(number, at)

    def admitted(self, rid: str, now: float) -> None:
        """A request gets a slot; after a retraction again, which is no part of its queue time."""
        visit = self.here.get(rid)
        if visit is not None and visit.admitted is None:
            visit.admitted = now

    def said(self, output: Output, now: float, result: Result) -> int | None:
        """Take an output; the number of the request where it has finished by it."""
        visit = self.here[output.rid]
        if output.tokens and visit.first is None:
            visit.first = now
        visit.tokens += len(output.tokens)
        if output.finish is None:
            return None
        del self.here[output.rid]
        if output.finish not in ANSWERED:
            result.refused += 1
            return None
        result.finished += 1
        result.answered_s = now
        result.output_tokens += visit.tokens
        self.at.append(visit.at)
        self.waits.append((now if visit.admitted is None else visit.admitted) - visit.at)
        self.ttft.append((now if visit.first is None else visit.first) - visit.at)
        self.latency.append(now - visit.at)
        return visit.number


@dataclass(slots=True)
class Steps:
    """What steps are made of."""

    experts: Experts | None
    slots: dict[int, Arrival] = field(default_factory=dict)
    """Whose turn it is in each slot."""
    padded_tokens: int = 0
    """Prompt tokens of all steps if each chunk were as long as the longest of its step."""
    prompt_tokens: int = 0
    spread: float = 0.0
    """Sum over the steps that have several chunks."""
    several: int = 0
    touched: float = 0.0
    """Experts, summed over all steps."""
    decode_touched: float = 0.0
    steps: int = 0
    decode_s: float = 0.0
    decodes: int = 0

    def share(self, plan: StepPlan) -> float | None:
        """The share of a layer's experts that a step of this plan reads; None for a model without experts."""
        if self.experts is None:
            return None
        tokens: Counter[str | None] = Counter()
        for row in plan.rows:
            tokens[self.slots[row.slot].routing_key] += row.count
        return self.experts.share(tokens)

    def done(self, plan: StepPlan, steps: int, seconds: float, share: float | None) -> None:
        """Note a launch: `steps` steps, of which each reads `share` of the experts, in `seconds`."""
        self.steps += steps
        touched = steps * share * self.experts.affinity.experts if self.experts and share else 0.0
        self.touched += touched
        chunks = _chunks(plan)
        if chunks:
            self._prompts(chunks)
        elif plan.rows:
            self.decode_s += seconds
            self.decode_touched += touched
            self.decodes += steps

    def _prompts(self, chunks: Sequence[int]) -> None:
        tokens, count = sum(chunks), len(chunks)
        self.prompt_tokens += tokens
        self.padded_tokens += count * max(chunks)
        if count > 1:
            self.several += 1
            mean = tokens / count
            self.spread += sqrt(sum([(chunk - mean) ** 2 for chunk in chunks]) / count) / mean

    def tell(self, result: Result) -> None:
        """Fill in what was seen."""
        result.steps = self.steps
        result.computed_tokens = self.prompt_tokens
        result.padding_share = 1 - self.prompt_tokens / self.padded_tokens if self.padded_tokens else 0.0
        result.chunk_spread = self.spread / self.several if self.several else 0.0
        result.experts_per_step = self.touched / self.steps if self.steps else 0.0
        result.decode_experts = self.decode_touched / self.decodes if self.decodes else 0.0
        result.decode_step_s = self.decode_s / self.decodes if self.decodes else 0.0


def _chunks(plan: StepPlan) -> list[int]:
    """Tokens of each prompt in a step; decode rows, which bring no tokens, come first."""
    chunks = []
    for row in reversed(plan.rows):
        if row.tokens is None:
            break
        chunks.append(row.count)
    return chunks
