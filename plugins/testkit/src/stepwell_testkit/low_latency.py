"""What the low-latency kernels of DeepEP, and of libraries made after it, do to tensors: for doubles. Needs torch.

Results are written by the hooks, into tensors that hold garbage until then, as the kernels do it.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeAlias

from stepwell_testkit.wire import TwoBuffers

torch: Any = import_module("torch")  # where nobody imports this module it need not be installed, not for types either
Tensor: TypeAlias = Any

HIDDEN = (2048, 2560, 3072, 4096, 5120, 6144, 7168, 8192)
RUN = 128

Hook: TypeAlias = Callable[[], None]
Rows: TypeAlias = Tensor | tuple[Tensor, Tensor]
Silent = Callable[[list[int]], None]


class LowLatency:
    """One rank's kernels and buffers. `silent` is told which ranks were waited for in vain."""

    def __init__(self, flags: TwoBuffers, rank: int, ranks: int, silent: Silent) -> None:
        self._flags, self._rank, self._ranks, self._silent = flags, rank, ranks, silent

    def dispatch(
        self, x: Tensor, topk_idx: Tensor, most: int, experts: int, float8: bool
    ) -> tuple[Rows, Tensor, tuple[Any, ...], Hook]:
        """(rows, counts, handle, hook)."""
        own = experts // self._ranks
        _dispatchable(x, topk_idx, most, experts, self._ranks)
        assert not float8 or x.shape[1] % (4 * RUN) == 0
        rows = torch.full((own, self._ranks * most, x.shape[1]), float("nan"), dtype=torch.bfloat16)
        small = rows.to(torch.float8_e4m3fn)
        scales = torch.full((own, x.shape[1] // RUN, self._ranks * most), float("nan")).transpose(1, 2)
        counts = torch.full((own,), -7, dtype=torch.int32)
        sources = torch.full((own, self._ranks * most), -7, dtype=torch.int32)
        ranges = torch.full((own, self._ranks), -7, dtype=torch.int64)

        def part(rank: int) -> list[tuple[list[int], Tensor]]:
            chosen = [(topk_idx == rank * own + local).any(1).nonzero().flatten() for local in range(own)]
            return [(tokens.tolist(), x[tokens].clone()) for tokens in chosen]

        receive = self._flags.send([part(rank) for rank in range(self._ranks)])

        def hook() -> None:
            parts, missing = receive()
            self._silent(missing)
            for local in range(own):
                begin = 0
                for source in reversed(range(self._ranks)):  # in whatever order they come
                    tokens, values = parts[source][local] if parts[source] is not None else ([], x[:0])
                    ranges[local, source] = begin << 32 | len(tokens)
                    sources[local, begin : begin + len(tokens)] = torch.tensor(tokens, dtype=torch.int32)
                    rows[local, begin : begin + len(tokens)] = values
                    begin += len(tokens)
                counts[local] = begin
                if float8:
                    small[local, :begin], scales[local, :begin] = _shrunk(rows[local, :begin])

        handle = (sources, ranges, most, x.shape[1], experts)
        return (small, scales) if float8 else rows, counts, handle, hook

    def combine(self, x: Tensor, topk_idx: Tensor, weights: Tensor, handle: tuple[Any, ...]) -> tuple[Tensor, Hook]:
        """(sums, hook)."""
        sources, ranges, most, hidden, experts = handle
        own = experts // self._ranks
        assert x.shape == (own, self._ranks * most, hidden), f"{tuple(x.shape)}"
        assert x.dtype == torch.bfloat16 and x.is_contiguous()
        assert topk_idx.shape == weights.shape and len(topk_idx) <= most
        assert weights.dtype == torch.float32 and weights.is_contiguous()
        assert topk_idx.dtype == torch.int64 and topk_idx.is_contiguous()
        assert int(ranges.min()) >= 0, "a combine before its dispatch was received"
        sums = torch.full((len(topk_idx), hidden), float("nan"), dtype=torch.bfloat16)

        def part(rank: int) -> dict[tuple[int, int], Tensor]:
            answers = {}
            for local in range(own):
                begin, count = int(ranges[local, rank]) >> 32, int(ranges[local, rank]) & 0xFFFFFFFF
                for at in range(begin, begin + count):
                    answers[int(sources[local, at]), self._rank * own + local] = x[local, at].clone()
            return answers

        receive = self._flags.send([part(rank) for rank in range(self._ranks)])

        def hook() -> None:
            parts, missing = receive()
            self._silent(missing)
            answers = {key: row for part in parts if part is not None for key, row in part.items()}
            for token, (chosen, shares) in enumerate(zip(topk_idx.tolist(), weights.tolist(), strict=True)):
                total = torch.zeros(hidden)
                for expert, share in zip(chosen, shares, strict=True):
                    if (token, expert) in answers:
                        total += answers[token, expert].float() * share
                    assert expert < 0 or missing or (token, expert) in answers, f"nothing of {expert} for {token}"
                sums[token] = total.to(torch.bfloat16)

        return sums, hook


def _dispatchable(x: Tensor, topk_idx: Tensor, most: int, experts: int, ranks: int) -> None:
    assert x.dim() == 2 and x.is_contiguous() and x.dtype == torch.bfloat16
    assert x.shape[1] in HIDDEN, f"Unsupported hidden {x.shape[1]}"
    assert 0 < len(x) <= most <= 1024, f"{len(x)} tokens of {most}: none, or too many"
    assert topk_idx.dim() == 2 and topk_idx.is_contiguous() and topk_idx.dtype == torch.int64
    assert len(topk_idx) == len(x) and topk_idx.shape[1] <= 11
    assert experts % ranks == 0 and (ranks * most) % 4 == 0
    assert int(topk_idx.max()) < experts and int(topk_idx.min()) >= -1


def _shrunk(rows: Tensor) -> tuple[Tensor, Tensor]:
    """8-bit floats and the scale of each run of 128."""
    runs = rows.float().view(len(rows), rows.shape[1] // RUN, RUN)
    scales = runs.abs().amax(-1).clamp(min=1e-4) / 448
    return (runs / scales[..., None]).view_as(rows).to(torch.float8_e4m3fn), scales
