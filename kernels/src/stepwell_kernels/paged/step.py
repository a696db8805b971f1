"""What one step computes, in static device memory: packed on the host, sent in one copy, read when kernels run.

The layout depends on the step's shape alone, so a CUDA graph captured for a shape replays over any later step of it:

    int64  last[rows]  positions[tokens]
    int32  slots[rows]  starts[rows]  counts[rows]  begins[rows]  token_slots[tokens]

    rows    | decodes | idle | prompts |            tokens  | decodes | idle | prompts' tokens | idle |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle

import numpy as np
import numpy.typing as npt
import torch

STAGES = 4
"""Steps whose copies may be under way before packing another waits for the first."""


@dataclass(frozen=True, slots=True)
class StepShape:
    """All that a captured graph depends on."""

    decodes: int
    """Rows of one token, with the idle ones behind them; their tokens are the first of the flat batch."""
    prompts: int
    """Rows of any number of tokens."""
    tokens: int
    """All of them, with padding."""

    @property
    def rows(self) -> int:
        return self.decodes + self.prompts

    @property
    def numbers(self) -> int:
        """int32 numbers that a step of this shape takes."""
        return _spans(self)[-1][1]


@dataclass(frozen=True, slots=True)
class Step:
    """A step's numbers on the device; the views of one shape never move."""

    shape: StepShape
    slots: torch.Tensor
    """int32 [rows]; the idle slot for padding."""
    starts: torch.Tensor
    """int32 [rows]: tokens before the row's own."""
    counts: torch.Tensor
    """int32 [rows]: tokens that it adds; 0 for padding."""
    begins: torch.Tensor
    """int32 [rows]: its first token in the flat batch."""
    last: torch.Tensor
    """int64 [rows]: its last token in the flat batch; for padding any token."""
    token_slots: torch.Tensor
    """int32 [tokens]."""
    positions: torch.Tensor
    """int64 [tokens]; 0 for padding."""


class StepBuffers:
    """The device memory of steps, one after another on one stream, and the pinned memory that they are packed in."""

    def __init__(self, device: torch.device | str, max_rows: int, max_tokens: int, idle_slot: int) -> None:
        """`max_rows` and `max_tokens` count padding too."""
        self._device = torch.device(device)
        self._idle = idle_slot
        self._room = StepShape(max_rows, 0, max_tokens)
        self._numbers = torch.zeros(self._room.numbers, dtype=torch.int32, device=self._device)
        self._stages = cycle([_Stage(self._room.numbers, self._device) for _ in range(STAGES)])
        self._views: dict[StepShape, Step] = {}

    def shape(self, rows: Sequence[tuple[int, int, int]], rows_padded: int, tokens_padded: int) -> StepShape:
        """The shape that `fill` would answer."""
        decodes = _decodes(rows)
        shape = StepShape(max(decodes, rows_padded - (len(rows) - decodes)), len(rows) - decodes, tokens_padded)
        needed = shape.decodes + sum(count for _, _, count in rows[decodes:])
        if needed > tokens_padded or shape.rows > self._room.rows or tokens_padded > self._room.tokens:
            raise ValueError(
                f"a step of {shape.rows} rows and {needed} tokens, padded to {tokens_padded}, does not fit into "
                f"{self._room.rows} rows and {self._room.tokens} tokens"
            )
        return shape

    def fill(self, rows: Sequence[tuple[int, int, int]], rows_padded: int, tokens_padded: int) -> StepShape:
        """Enqueue the numbers of a step on the current stream: `rows` are (slot, start, count), decode rows first.

        Rows of one token that stand first are decodes; idle ones behind them pad the rows to `rows_padded`, and idle
        tokens at the end pad the tokens to `tokens_padded`. A prompt of no tokens is padding too.
        """
        shape = self.shape(rows, rows_padded, tokens_padded)
        stage = next(self._stages)
        stage.wait()
        _pack(stage.numbers[: shape.numbers], shape, np.array(rows, np.int32).reshape(-1, 3), self._idle)
        stage.send(self._numbers[: shape.numbers])
        return shape

    def step(self, shape: StepShape) -> Step:
        """Where a step of this shape lies."""
        if shape not in self._views:
            self._views[shape] = _view(self._numbers[: shape.numbers], shape)
        return self._views[shape]


class _Stage:
    """Pinned memory of one step's numbers; it is not written again before its last copy is through."""

    def __init__(self, numbers: int, device: torch.device) -> None:
        cuda = device.type == "cuda"
        self._pinned = torch.zeros(numbers, dtype=torch.int32, pin_memory=cuda)
        self.numbers: npt.NDArray[np.int32] = self._pinned.numpy()
        self._sent = torch.cuda.Event() if cuda else None

    def wait(self) -> None:
        if self._sent is not None:
            self._sent.synchronize()

    def send(self, target: torch.Tensor) -> None:
        target.copy_(self._pinned[: target.shape[0]], non_blocking=True)
        if self._sent is not None:
            self._sent.record()


def _decodes(rows: Sequence[tuple[int, int, int]]) -> int:
    return next((at for at, (_, _, count) in enumerate(rows) if count != 1), len(rows))


def _spans(shape: StepShape) -> list[tuple[int, int]]:
    """Of int32 numbers: last, positions, slots, starts, counts, begins, token_slots; each starts at 16 bytes."""
    spans, at = [], 0
    for size in (2 * shape.rows, 2 * shape.tokens, *[shape.rows] * 4, shape.tokens):
        spans.append((at, at + size))
        at += -(-size // 4) * 4
    return spans


def _view(numbers: torch.Tensor, shape: StepShape) -> Step:
    last, positions, slots, starts, counts, begins, token_slots = (numbers[a:b] for a, b in _spans(shape))
    wide = torch.int64
    return Step(shape, slots, starts, counts, begins, last.view(wide), token_slots, positions.view(wide))


def _pack(numbers: npt.NDArray[np.int32], shape: StepShape, rows: npt.NDArray[np.int32], idle: int) -> None:
    last, positions, slots, starts, counts, begins, token_slots = (numbers[a:b] for a, b in _spans(shape))
    real = len(rows) - shape.prompts
    slots[:], starts[:], counts[:] = idle, 0, 0
    for span, part in ((slice(0, real), rows[:real]), (slice(shape.decodes, None), rows[real:])):
        slots[span], starts[span], counts[span] = part.T
    own = counts.copy()
    own[: shape.decodes] = 1
    ends = np.cumsum(own)
    begins[:] = ends - own
    last.view(np.int64)[:] = np.clip(ends - 1, 0, max(shape.tokens - 1, 0))
    used = int(ends[-1]) if len(ends) else 0
    token_slots[used:], positions[:] = idle, 0
    token_slots[:used] = np.repeat(slots, own)
    positions.view(np.int64)[:used] = np.arange(used) + np.repeat(starts - begins, own)
