"""How long a step takes on given hardware: stated formulas, no measurement.

With T tokens computed, P (query, key) pairs attended, C context tokens read and B bytes loaded from host:

    compute = (2 * parameters * T + pair_flops * P) / flops
    memory  = (weight_bytes + kv_bytes * C) / bandwidth
    busy    = overhead + max(compute, memory)
    step    = busy                                             if B = 0
    step    = load / L + max(busy, load) * (L - 1) / L + busy / L   with load = B / link and L layers:
              layer i waits for copy i only, so the shorter of the two hides behind the longer but for one layer.

Layers that see only a window or a chunk have pairs and context of their own, bounded by what they see, and add to both
sums. Of a layer of experts, the share that the step's tokens choose is read. Where nobody says how many those are, it
is 1 - (1 - chosen / experts) ^ T: so many are chosen by one token or another, if each chooses evenly and by itself.

`flops`, `bandwidth` and `link` are what is reached in practice, not the data sheet; each preset says which share.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from stepwell.abc.runner import Row, StepPlan
from stepwell.types import Chunked, Full, Need, Window


class Clock(Protocol):
    """Tells what steps take. `experts`: share of the experts that a step reads, where somebody knows it."""

    def step(self, rows: Sequence[Row], load_bytes: float = 0.0, experts: float | None = None) -> float:
        """Seconds that one step takes."""

    def decode(self, starts: Sequence[int], experts: float | None = None) -> Decoding:
        """Requests that decode together; `starts`: the position of each one's next token."""


class Decoding(ABC):
    """Decode steps of the same requests, one after the other."""

    @abstractmethod
    def seconds(self, steps: int) -> float:
        """Seconds of the first `steps` steps."""

    def until(self, horizon: int, seconds: float) -> int:
        """The fewest steps, 1 to `horizon`, that take at least `seconds`."""
        low, high = 1, horizon
        while low < high:
            middle = (low + high) // 2
            if self.seconds(middle) >= seconds:
                high = middle
            else:
                low = middle + 1
        return low


@dataclass(frozen=True, slots=True)
class Narrow:
    """Layers that do not see the whole history."""

    need: Window | Chunked
    kv_bytes: float
    """Of one token over these layers."""
    pair_flops: float


@dataclass(frozen=True, slots=True)
class Timing:
    """A model on a device."""

    parameters: float
    """That a token's forward multiplies with; embeddings looked up do not count."""
    weight_bytes: float
    """Read once a step."""
    kv_bytes: float
    """Of one token over all layers that see the whole history."""
    pair_flops: float
    """4 * layers * heads * head size, of the same layers."""
    layers: int
    flops: float
    bandwidth: float
    link: float
    """Bytes a second between host and device, one way."""
    overhead: float
    """Seconds of a step that do not depend on its size."""
    narrow: tuple[Narrow, ...] = ()
    """All other layers."""
    expert_bytes: float = 0.0
    """Of all experts together: weights of which a step reads what its tokens choose."""
    expert_share: float = 0.0
    """Experts that a token chooses, of all."""
    experts: int = 0
    """Of one layer; 0: none, or not known."""
    expert_parameters: float = 0.0
    """Of all experts together."""

    def with_experts(self, experts: int, chosen: int) -> Timing:
        """The same weights divided into so many experts a layer, of which a token chooses `chosen`."""
        share = chosen / experts
        active = self.parameters + self.expert_parameters * (share - self.expert_share)
        return replace(self, experts=experts, expert_share=share, parameters=active)

    def step(self, rows: Sequence[Row], load_bytes: float = 0.0, experts: float | None = None) -> float:
        tokens = pairs = context = 0
        for row in rows:
            count, end = row.count, row.start + row.count
            tokens += count
            context += end
            pairs += count * end - count * (count - 1) // 2
        arithmetic, read = self.pair_flops * pairs, self.kv_bytes * context
        for part in self.narrow:
            pairs, context = _attended(part.need, rows)
            arithmetic += part.pair_flops * pairs
            read += part.kv_bytes * context
        busy = self.busy(tokens, arithmetic, read, experts)
        return beside(busy, load_bytes / self.link, self.layers) if load_bytes else busy

    def decode(self, starts: Sequence[int], experts: float | None = None) -> Decoding:
        return _Counted(self, starts, experts)

    def busy(self, tokens: float, arithmetic: float, read: float, experts: float | None = None) -> float:
        """Seconds without loads: `arithmetic` operations of attention, `read` bytes of K and V."""
        compute = (2 * self.parameters * tokens + arithmetic) / self.flops
        weights = self.weight_bytes
        if self.expert_bytes:
            share = 1 - (1 - self.expert_share) ** tokens if experts is None else experts
            weights += self.expert_bytes * share
        return self.overhead + max(compute, (weights + read) / self.bandwidth)


def beside(busy: float, load: float, layers: int) -> float:
    """Seconds of a step whose copies from host run layer by layer beside what it computes."""
    return load / layers + max(busy, load) * (layers - 1) / layers + busy / layers


class _Counted(Decoding):
    """Each step is counted as the one in the middle."""

    def __init__(self, timing: Timing, starts: Sequence[int], experts: float | None) -> None:
        self._timing = timing
        self._experts = experts
        self._rows = len(starts)
        self._context = sum(starts) + self._rows
        self._narrow = [(part, *_steady(part.need, starts)) for part in timing.narrow]

    def seconds(self, steps: int) -> float:
        timing, rows = self._timing, self._rows
        middle = self._context + rows * (steps - 1) / 2
        arithmetic, read = timing.pair_flops * middle, timing.kv_bytes * middle
        for part, steady, moving in self._narrow:
            seen = steady + sum([pairs(part.need, at + steps) - pairs(part.need, at) for at in moving]) / steps
            arithmetic += part.pair_flops * seen
            read += part.kv_bytes * seen
        return steps * timing.busy(rows, arithmetic, read, self._experts)


def pairs(need: Need, tokens: int) -> int:
    """(query, key) pairs of the first `tokens` tokens of a request: each with itself and what it needs before it."""
    match need:
        case Full():
            return tokens * (tokens + 1) // 2
        case Window(history):
            most = history + 1
            growing = min(tokens, most)
            return growing * (growing + 1) // 2 + (tokens - growing) * most
        case Chunked(chunk):
            chunks, rest = divmod(tokens, chunk)
            return chunks * (chunk * (chunk + 1) // 2) + rest * (rest + 1) // 2


def _attended(need: Window | Chunked, rows: Sequence[Row]) -> tuple[int, int]:
    """Pairs, and tokens of context: each is read once a row."""
    if isinstance(need, Window):
        return _within(need.tokens, rows)
    both = [
        (pairs(need, end := row.start + row.count) - pairs(need, row.start), end - need.lo(row.start)) for row in rows
    ]
    return sum([one for one, _ in both]), sum([context for _, context in both])


def _within(history: int, rows: Sequence[Row]) -> tuple[int, int]:
    """`_attended` of windows, in which most rows see all that they can."""
    seen = context = 0
    for row in rows:
        start, count = row.start, row.count
        if start >= history:
            seen += count * (history + 1)
            context += count + history
        else:
            need = Window(history)
            seen += pairs(need, start + count) - pairs(need, start)
            context += start + count
    return seen, context


def _steady(need: Window | Chunked, starts: Sequence[int]) -> tuple[int, list[int]]:
    """Pairs a step of those requests whose number does not change any more, and where the others stand."""
    if isinstance(need, Chunked):
        return 0, list(starts)
    moving = [start for start in starts if start < need.tokens]
    return (len(starts) - len(moving)) * (need.tokens + 1), moving


class Machine:
    """A device on the virtual clock: what a plan takes, and how far a horizon gets.

    `page_bytes`: bytes of a page, by group.
    """

    def __init__(self, timing: Clock, page_bytes: Sequence[int]) -> None:
        self.timing = timing
        self._page_bytes = tuple(page_bytes)

    def run(self, plan: StepPlan, until: float | None = None, experts: float | None = None) -> tuple[int, float]:
        """Decode steps done and seconds taken; a horizon ends with the step in which `until` seconds have passed."""
        if plan.horizon == 1:
            loaded = sum(len(copy.device) * self._page_bytes[copy.group] for copy in plan.loads)
            return 1, self.timing.step(plan.rows, loaded, experts)
        decoding = self.timing.decode([row.start for row in plan.rows], experts)
        steps = plan.horizon if until is None else decoding.until(plan.horizon, until)
        return steps, decoding.seconds(steps)
