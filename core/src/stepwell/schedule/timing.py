"""How long a step takes on given hardware: stated formulas and named presets, no measurement.

With T tokens computed, P (query, key) pairs attended, C context tokens read and B bytes loaded from host:

    compute = (2 * parameters * T + pair_flops * P) / flops
    memory  = (weight_bytes + kv_bytes * C) / bandwidth
    busy    = overhead + max(compute, memory)
    step    = busy                                             if B = 0
    step    = load / L + max(busy, load) * (L - 1) / L + busy / L   with load = B / link and L layers:
              layer i waits for copy i only, so the shorter of the two hides behind the longer but for one layer.

Layers that see only a window or a chunk have pairs and context of their own, bounded by what they see, and add to both
sums. Of a layer of experts, the share 1 - (1 - chosen / experts) ^ T of its weights is read: so many are chosen by one
token or another, if each chooses evenly and by itself.

`flops`, `bandwidth` and `link` are what is reached in practice, not the data sheet; each preset says which share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stepwell.abc.runner import Row, StepPlan
from stepwell.types import Chunked, Full, Need, Window


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

    def step(self, rows: Sequence[Row], load_bytes: float = 0.0) -> float:
        """Seconds that one step takes."""
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
        busy = self.busy(tokens, arithmetic, read)
        if not load_bytes:
            return busy
        load = load_bytes / self.link
        return load / self.layers + max(busy, load) * (self.layers - 1) / self.layers + busy / self.layers

    def decode(self, starts: Sequence[int]) -> Decoding:
        """Requests that decode together; `starts`: the position of each one's next token."""
        return Decoding(self, starts)

    def busy(self, tokens: float, arithmetic: float, read: float) -> float:
        """Seconds without loads: `arithmetic` operations of attention, `read` bytes of K and V."""
        compute = (2 * self.parameters * tokens + arithmetic) / self.flops
        weights = self.weight_bytes
        if self.expert_bytes:
            weights += self.expert_bytes * (1 - (1 - self.expert_share) ** tokens)
        return self.overhead + max(compute, (weights + read) / self.bandwidth)


class Decoding:
    """Decode steps of the same requests, one after the other; each is counted as the one in the middle."""

    def __init__(self, timing: Timing, starts: Sequence[int]) -> None:
        self._timing = timing
        self._rows = len(starts)
        self._context = sum(starts) + self._rows
        self._narrow = [(part, *_steady(part.need, starts)) for part in timing.narrow]

    def seconds(self, steps: int) -> float:
        """Seconds of the first `steps` steps."""
        timing, rows = self._timing, self._rows
        middle = self._context + rows * (steps - 1) / 2
        arithmetic, read = timing.pair_flops * middle, timing.kv_bytes * middle
        for part, steady, moving in self._narrow:
            seen = steady + sum([pairs(part.need, at + steps) - pairs(part.need, at) for at in moving]) / steps
            arithmetic += part.pair_flops * seen
            read += part.kv_bytes * seen
        return steps * timing.busy(rows, arithmetic, read)

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

    def __init__(self, timing: Timing, page_bytes: Sequence[int]) -> None:
        self.timing = timing
        self._page_bytes = tuple(page_bytes)

    def run(self, plan: StepPlan, until: float | None = None) -> tuple[int, float]:
        """Decode steps done and seconds taken; a horizon ends with the step in which `until` seconds have passed."""
        if plan.horizon == 1:
            loaded = sum(len(copy.device) * self._page_bytes[copy.group] for copy in plan.loads)
            return 1, self.timing.step(plan.rows, loaded)
        decoding = self.timing.decode([row.start for row in plan.rows])
        steps = plan.horizon if until is None else decoding.until(plan.horizon, until)
        return steps, decoding.seconds(steps)


def _llama8b(*, flops: float, bandwidth: float, link: float, overhead: float) -> Timing:
    """Llama 3.1 8B in bfloat16: 32 layers, 32 heads and 8 KV heads of 128."""
    return Timing(
        parameters=7.5e9,
        weight_bytes=15.0e9,
        kv_bytes=32 * 2 * 8 * 128 * 2,
        pair_flops=4 * 32 * 32 * 128,
        layers=32,
        flops=flops,
        bandwidth=bandwidth,
        link=link,
        overhead=overhead,
    )


PRESETS: dict[str, Timing] = {
    # 989 TFLOP/s dense bf16 at 60%, 4.8 TB/s at 75%, PCIe 5 x16 at 80% of 63 GB/s
    "h200-llama8b": _llama8b(flops=593e12, bandwidth=3.6e12, link=50e9, overhead=5e-4),
    # 70 TFLOP/s dense bf16 at 60%, 600 GB/s at 75%, PCIe 4 x16 at 76% of 31.5 GB/s
    "a10g-llama8b": _llama8b(flops=42e12, bandwidth=450e9, link=24e9, overhead=5e-4),
    # SmolLM2-135M in float32 on two server cores: 100 GFLOP/s, 15 GB/s; "link" is a copy in memory
    "cpu-smollm2": Timing(
        parameters=1.345e8,
        weight_bytes=5.4e8,
        kv_bytes=30 * 2 * 3 * 64 * 4,
        pair_flops=4 * 30 * 9 * 64,
        layers=30,
        flops=100e9,
        bandwidth=15e9,
        link=5e9,
        overhead=2e-3,
    ),
}
