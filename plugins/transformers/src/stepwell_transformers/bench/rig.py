"""A runner with its pools, driven by hand: steps of exactly the shape that a bench wants, two in flight.

Page tables are slices of one random permutation of all pages, so rows read pages that lie anywhere. What the pages hold
is random and came from the host arena through loads, which is how a cached prefix comes, only that nobody computed it:
a decode step takes the same time, and no bench waits for long prefills. The next shape takes the same pages again.
"""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from stepwell import PageCopy, Row, Sampling, SlotOpen, Step, StepPlan, StepResult, StepwellError, TableEdit
from stepwell.cache.arena import Arena
from stepwell.models import ModelShape, read_shape
from stepwell.types import Ids
from stepwell_transformers.bench.arithmetic import Weights
from stepwell_transformers.bench.weigh import weigh
from stepwell_transformers.config import TransformersConfig
from stepwell_transformers.locate import locate
from stepwell_transformers.runner import TransformersRunner, pick_device

PATIENCE_S = 300.0
LOADS_A_PLAN = 2048


@dataclass(frozen=True)
class Place:
    """A Context."""

    state_dir: Path
    log: logging.Logger
    device: str = "cpu"
    rank: int = 0
    world: int = 1
    meet: str = ""
    clock: Callable[[], float] = time.monotonic


@dataclass(frozen=True, slots=True)
class Seat:
    """A slot whose tables hold pages for the positions that `edits` say."""

    slot: int
    edits: tuple[TableEdit, ...]


class Rig:
    """A runner on its device, with pages for what a bench does."""

    def __init__(self, settings: TransformersConfig, place: Place, page_size: int) -> None:
        self.settings, self.page_size = settings, page_size
        start = time.perf_counter()
        self.runner = TransformersRunner(settings, place)
        self.start_s = time.perf_counter() - start
        """Until the runner was made, and later until its pools were open."""
        self.device = pick_device(settings.device)
        folder = locate(settings.model, settings.revision, place.state_dir)
        self.dtype: torch.dtype = getattr(torch, self.runner.model.kv_dtype)
        self.shape, self.heads = read(folder)
        self.weights: Weights = weigh(folder, self.dtype.itemsize)
        self.groups = self.runner.groups
        self.arena: Arena | None = None
        self._pages: list[Ids] = []
        self.host: list[int] = []
        self._number = 0
        self._copy = 0
        self._seats: list[int] = []
        self._saving: set[int] = set()
        self._budget: list[int | None] = []
        self._news = threading.Event()

    # --- memory ------------------------------------------------------------------------------------------------

    def pages_for(self, batch: int, context: int, new: int) -> dict[str, int]:
        """Pages of each group for a batch of rows that continue at `context` and compute `new` tokens."""
        return {group.name: batch * len(self._span(at, context, new)) for at, group in enumerate(self.groups)}

    def nbytes(self, pages: Mapping[str, int]) -> int:
        """What so many pages take."""
        return sum(group.token_bytes * self.page_size * pages[group.name] for group in self.groups)

    def fits(self, pages: Mapping[str, int]) -> bool:
        """Whether the device has room for them."""
        if not self._budget:  # asking may run the largest steps
            self._budget.append(self.runner.budget())
        (budget,) = self._budget
        return budget is None or self.nbytes(pages) <= budget

    def open(self, pages: Mapping[str, int], slots: int, host: Mapping[str, int]) -> None:
        """Allocate on device and host, once, and fill both with random K and V."""
        start = time.perf_counter()
        self.runner.open(self.page_size, pages, slots, self._news.set)
        self.start_s += time.perf_counter() - start
        random = np.random.default_rng(3)
        self._pages = [random.permutation(pages[group.name]).astype(np.int32) for group in self.groups]
        self.host = [host[group.name] for group in self.groups]
        self.arena = Arena.create(self.groups, self.page_size, self.host)
        _fill(self.arena, self.dtype, self.device)
        self.runner.pin(self.arena)
        for group, ids in enumerate(self._pages):
            for at in range(0, len(ids), LOADS_A_PLAN):
                part = ids[at : at + LOADS_A_PLAN]
                self.step(loads=(self.copy(group, part, at),))

    def copy(self, group: int, device: Ids, at: int = 0) -> PageCopy:
        """Of these device pages with as many host pages, scattered, from the `at`th one on, round and round."""
        host = np.random.default_rng(group).permutation(self.host[group]).astype(np.int32)
        self._copy += 1
        return PageCopy(self._copy, group, device, host[(at + np.arange(len(device))) % len(host)])

    def close(self) -> None:
        """Give all of it back."""
        self.runner.close()
        if self.arena is not None:
            self.arena.close()
        del self.runner
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    # --- steps -------------------------------------------------------------------------------------------------

    def seat(self, batch: int, context: int, new: int, sampling: Sampling = Sampling()) -> list[Seat]:  # noqa: B008
        """Let go of the slots before, and open slots whose tables reach from what `context` needs to its new tokens."""
        seats = []
        for slot in range(batch):
            edits = []
            for group, ids in enumerate(self._pages):
                span = self._span(group, context, new)
                mine = ids[slot * len(span) : (slot + 1) * len(span)]
                edits.append(TableEdit(slot, group, span.start, mine))
            seats.append(Seat(slot, tuple(edits)))
        prompt = self.tokens(context)
        opens = tuple(SlotOpen(seat.slot, sampling, prompt, 0) for seat in seats)
        if self._seats:
            self.step(closes=tuple(self._seats))
        self.step(opens=opens, tables=tuple(edit for seat in seats for edit in seat.edits))
        self._seats = [seat.slot for seat in seats]
        return seats

    def tokens(self, count: int) -> bytes:
        """Random ones."""
        vocab = self.runner.model.vocab
        return np.random.default_rng(count).integers(0, vocab, count).astype(np.int32).tobytes()

    def held(self, seats: Sequence[Seat], length: int) -> list[tuple[int, Ids]]:
        """The pages, by group, that hold the seats' history up to `length`."""
        found = []
        for group, _ in enumerate(self.groups):
            edits = [edit for seat in seats for edit in seat.edits if edit.group == group]
            ids = [edit.pages[: length // self.page_size - edit.first] for edit in edits]
            found.append((group, np.concatenate(ids)))
        return found

    def others(self, group: int, ids: Ids) -> Ids:
        """As many pages that are none of these."""
        whole = self._pages[group]
        return whole[~np.isin(whole, ids)][: len(ids)]

    def launch(self, **plan: object) -> Step:
        """Start a step."""
        self._number += 1
        made = StepPlan(self._number, **plan)  # type: ignore[arg-type]
        if self.runner.late_saves:
            self._saving |= {copy.id for copy in made.saves}
        return self.runner.launch(made)

    def wait(self, step: Step) -> StepResult:
        """Its result. StepwellError where it failed, or did not end."""
        deadline = time.monotonic() + PATIENCE_S
        try:
            while (result := step.poll()) is None:
                if time.monotonic() > deadline:
                    raise StepwellError(f"a step did not end within {PATIENCE_S:.0f} s")
                self._news.wait(1)
                self._news.clear()
        except (RuntimeError, MemoryError) as error:
            raise StepwellError(f"the device takes no more steps: {error}") from error
        if result.error:
            raise StepwellError(f"a step failed: {result.error}")
        return result

    def step(self, **plan: object) -> StepResult:
        """Start a step, and wait for it."""
        return self.wait(self.launch(**plan))

    def timed(self, plans: Iterator[dict[str, object]]) -> list[float]:
        """Carry plans out with as many in flight as the runner takes; when it began, and when each step ended."""
        flying: deque[Step] = deque()
        ends = [time.perf_counter()]
        for plan in plans:
            flying.append(self.launch(**plan))
            if len(flying) == self.runner.depth:
                self.wait(flying.popleft())
                ends.append(time.perf_counter())
        while flying:
            self.wait(flying.popleft())
            ends.append(time.perf_counter())
        return ends

    def decodes(self, seats: Sequence[Seat], context: int, steps: int) -> Iterator[dict[str, object]]:
        """Plans of decode steps from `context` on: the first token is given, the others are those sampled before."""
        first = self.tokens(1)
        for at in range(steps):
            yield {"rows": tuple(Row(seat.slot, context + at, 1, None if at else first, True) for seat in seats)}

    def chunks(self, seat: Seat, start: int, count: int, chunk: int) -> Iterator[dict[str, object]]:
        """Plans that compute `count` tokens of a prompt from `start`, and sample the next one."""
        for at in range(start, start + count, chunk):
            part = min(chunk, start + count - at)
            yield {"rows": (Row(seat.slot, at, part, self.tokens(part), at + part == start + count),)}

    def settle(self) -> None:
        """Wait for the saves of steps that ended before them."""
        deadline = time.monotonic() + PATIENCE_S
        while self._saving:
            if time.monotonic() > deadline:
                raise StepwellError(f"{len(self._saving)} saves did not end within {PATIENCE_S:.0f} s")
            self._saving -= set(self.runner.saved())
            if self._saving:
                self._news.wait(0.1)
                self._news.clear()

    def _span(self, group: int, context: int, new: int) -> range:
        low = self.groups[group].need.lo(context) // self.page_size
        return range(low, -(-(context + new) // self.page_size))


@contextmanager
def rigged(settings: TransformersConfig, place: Place, page_size: int) -> Iterator[Rig]:
    """A rig, closed in the end."""
    rig = Rig(settings, place, page_size)
    try:
        yield rig
    finally:
        rig.close()


def read(folder: Path) -> tuple[ModelShape, int]:
    """What the layers of the model in a folder keep, and how many query heads they have."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder)
    return read_shape(config.to_dict()), int(config.num_attention_heads)


def _fill(arena: Arena, dtype: torch.dtype, device: torch.device) -> None:
    """Normal numbers, drawn where that is fast."""
    whole = torch.frombuffer(arena.memory, dtype=dtype)
    size = 1 << 26
    drawn = torch.randn(min(size, len(whole)), device=device, dtype=dtype)
    for at in range(0, len(whole), size):
        part = whole[at : at + size]
        part.copy_(drawn[: len(part)])
