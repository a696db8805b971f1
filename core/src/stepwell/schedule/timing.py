"""How long a step takes on given hardware: stated formulas and named presets, no measurement.

With T tokens computed, P (query, key) pairs attended, C context tokens read and B bytes loaded from host:

    compute = (2 * parameters * T + pair_flops * P) / flops
    memory  = (weight_bytes + kv_bytes * C) / bandwidth
    busy    = overhead + max(compute, memory)
    step    = busy                                             if B = 0
    step    = load / L + max(busy, load) * (L - 1) / L + busy / L   with load = B / link and L layers:
              layer i waits for copy i only, so the shorter of the two hides behind the longer but for one layer.

`flops`, `bandwidth` and `link` are what is reached in practice, not the data sheet; each preset says which share.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stepwell.abc.runner import Row, StepPlan


@dataclass(frozen=True, slots=True)
class Timing:
    """A model on a device."""

    parameters: float
    """That a token's forward multiplies with; embeddings looked up do not count."""
    weight_bytes: float
    """Read once a step."""
    kv_bytes: float
    """Of one token over all layers."""
    pair_flops: float
    """4 * layers * heads * head size."""
    layers: int
    flops: float
    bandwidth: float
    link: float
    """Bytes a second between host and device, one way."""
    overhead: float
    """Seconds of a step that do not depend on its size."""

    def step(self, rows: Iterable[Row], load_bytes: float = 0.0) -> float:
        """Seconds that one step takes."""
        tokens = pairs = context = 0
        for row in rows:
            count, end = row.count, row.start + row.count
            tokens += count
            context += end
            pairs += count * end - count * (count - 1) // 2
        busy = self._busy(tokens, pairs, context)
        if not load_bytes:
            return busy
        load = load_bytes / self.link
        return load / self.layers + max(busy, load) * (self.layers - 1) / self.layers + busy / self.layers

    def decode(self, rows: int, context: int, steps: int) -> float:
        """Seconds of `steps` decode steps of `rows` requests that read `context` tokens in the first of them."""
        middle = context + rows * (steps - 1) / 2
        return steps * self._busy(rows, middle, middle)

    def decode_until(self, rows: int, context: int, horizon: int, seconds: float) -> int:
        """The fewest decode steps, 1 to `horizon`, that take at least `seconds`."""
        low, high = 1, horizon
        while low < high:
            middle = (low + high) // 2
            if self.decode(rows, context, middle) >= seconds:
                high = middle
            else:
                low = middle + 1
        return low

    def _busy(self, tokens: float, pairs: float, context: float) -> float:
        compute = (2 * self.parameters * tokens + self.pair_flops * pairs) / self.flops
        memory = (self.weight_bytes + self.kv_bytes * context) / self.bandwidth
        return self.overhead + max(compute, memory)


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
        rows, steps = len(plan.rows), plan.horizon
        context = sum([row.start for row in plan.rows]) + rows
        if until is not None:
            steps = self.timing.decode_until(rows, context, steps, until)
        return steps, self.timing.decode(rows, context, steps)


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
