"""A runner without a device: real pages, made-up tokens, so that a wrong page gives a wrong answer.

Each page holds, for each of its tokens, a rolling hash of everything before it. A row continues the hash that it finds
in its pages, and samples a token from all hashes that its attention group would read. So an answer depends on every
page that a model would read, and `answer` says what it has to be.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
import numpy.typing as npt

from stepwell.abc.runner import ModelInfo, PageCopy, Row, Runner, SlotOpen, Step, StepPlan, StepResult
from stepwell.offers import Context
from stepwell.schedule.presets import PRESETS
from stepwell.schedule.timing import Machine
from stepwell.settings import at_least
from stepwell.types import ArenaView, Full, GroupSpec, Ids, Sampling, TokenLogprob, Window

States = npt.NDArray[np.uint64]

EOS = 256
_MASK = (1 << 64) - 1
_STEP = 6364136223846793005
_LETTERS = b"etaoinshrdlucmfwypvbgkjqxz  eta "


@dataclass(frozen=True, slots=True)
class SimConfig:
    """The `[runner]` table when `use = "sim"`."""

    model: str = "sim"
    """Also seeds the hashes: two names are two models."""
    vocab: int = 257
    context: int = 8192
    full: bool = True
    """Whether some layers attend to everything."""
    windows: tuple[int, ...] = ()
    """History tokens of each sliding-window group."""
    token_bytes: int = 64
    """Of KV for one token, for each group; a multiple of 8 where pages are verified."""
    heads: int = 1
    """KV heads; each holds all of a token's hash. Ranks share them out, or hold all of them where that is uneven."""
    eos_every: int = 64
    """One sampled token in so many ends the answer; 0: none."""
    verify: bool = True
    """False: pages hold nothing and every token is the same; for replay."""
    chunk: int = 16_384
    """Preferred tokens of prefill a step."""
    depth: int = 2
    max_steps: int = 1
    preset: str = "h200-llama8b"
    """Timing model of the virtual clock."""
    pace: float = 0.0
    """Real seconds that a step takes at least."""
    fail_steps: tuple[int, ...] = ()
    """Numbers of steps that fail as a whole."""
    fail_loads: tuple[int, ...] = ()
    """Which loads fail, counted from 1."""
    fail_saves: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in ("context", "token_bytes", "heads", "chunk", "depth", "max_steps"):
            at_least(name, getattr(self, name), 1)
        for window in self.windows:
            at_least("windows", window, 0)
        at_least("eos_every", self.eos_every, 0)
        if not 0 <= self.pace < inf:
            raise ValueError(f"pace: {self.pace} is not a number of seconds")
        unit = 8 * self.heads
        if self.verify and self.token_bytes % unit:
            raise ValueError(f"token_bytes: {self.token_bytes} is not a multiple of {unit}, which verified pages need")
        if not self.full and not self.windows:
            raise ValueError("windows: a model needs a window where full is off")
        if self.vocab <= EOS:
            raise ValueError(f"vocab: {self.vocab} is less than {EOS + 1}")
        if self.preset not in PRESETS:
            raise ValueError(f"preset: {self.preset!r} is none of {', '.join(PRESETS)}")

    @property
    def groups(self) -> tuple[GroupSpec, ...]:
        """The model's attention groups."""
        return self.groups_of(1)

    def groups_of(self, world: int) -> tuple[GroupSpec, ...]:
        """The same as one of so many ranks has them."""
        ranks = world if self.heads % world == 0 else 1
        part = self.token_bytes // ranks, self.heads // ranks
        full = (GroupSpec("full", Full(), part[0], (0,), part[1], ranks),) if self.full else ()
        return full + tuple(
            GroupSpec(f"window{window}", Window(window), part[0], (at,), part[1], ranks)
            for at, window in enumerate(self.windows, len(full))
        )

    @property
    def info(self) -> ModelInfo:
        """The model as the rest of the system sees it."""
        return ModelInfo(self.model, f"sim-{self.model}", "u64", "sim-1", self.context, self.vocab, (EOS,))


class SimRunner(Runner):
    """Carries plans out when their result is asked for, in launch order, saves last: the latest that is allowed.

    `limit`, where a replay sets it, says how many virtual seconds are left until something else happens: a step with a
    horizon does as many decode steps as that takes. `SimStep.duration` is what the step took on the virtual clock.
    """

    def __init__(self, config: SimConfig, context: Context | None = None) -> None:
        self.config = config
        self.model = config.info
        self.groups = config.groups_of(1 if context is None else context.world)
        self.preferred_chunk = config.chunk
        self.depth = config.depth
        self.max_steps = config.max_steps
        self.machine = Machine(PRESETS[config.preset], [0] * len(config.groups))
        self.limit: Callable[[], float] | None = None
        self.loads = 0
        self.saves = 0
        self._memory = _Memory(config, self.groups) if config.verify else None
        self._slots: dict[int, _Slot] = {}
        self._queue: list[SimStep] = []
        self._wake: Callable[[], None] = lambda: None

    def open(self, page_size: int, pages: Mapping[str, int], slots: int, wake: Callable[[], None]) -> None:
        self._wake = wake
        self.machine = Machine(self.machine.timing, [group.token_bytes * page_size for group in self.groups])
        if self._memory is not None:
            self._memory.open(page_size, [pages[group.name] for group in self.groups])

    def pin(self, arena: ArenaView) -> None:
        if self._memory is not None:
            self._memory.pin(arena)

    def launch(self, plan: StepPlan) -> Step:
        step = SimStep(self, plan)
        until = self.limit() if self.limit is not None and plan.horizon > 1 else None
        step.steps, step.duration = self.machine.run(plan, until)
        self._queue.append(step)
        if self.config.pace:
            timer = threading.Timer(self.config.pace * step.steps, step.ripen)
            timer.daemon = True
            timer.start()
        else:
            step.ripen()
        return step

    def carry_out(self, until: SimStep) -> None:
        """Do everything up to a step, in launch order."""
        while until.result is None:
            step = self._queue.pop(0)
            step.result = self._result(step.plan, step.steps)

    def wake(self) -> None:
        """Tell the shell that a step is ready."""
        self._wake()

    # --- one step ----------------------------------------------------------------------------------------------

    def _result(self, plan: StepPlan, steps: int) -> StepResult:
        if plan.number in self.config.fail_steps:
            for slot in {row.slot for row in plan.rows} | {edit.slot for edit in plan.tables}:
                self._slots.pop(slot, None)
            return StepResult(plan.number, error="this step was told to fail")
        for opened in plan.opens:
            self._slots[opened.slot] = _Slot(opened, len(self.groups))
        copies: dict[int, tuple[bool, ...]] = {}
        if self._memory is None:
            tokens = _same_tokens(plan, steps)
            self._copied(plan.loads, plan.saves, copies)
            return StepResult(plan.number, steps, tokens, None, copies)
        for edit in plan.tables:
            if edit.slot in self._slots:
                self._slots[edit.slot].edit(edit.group, edit.first, edit.pages)
        for load in plan.loads:
            copies[load.id] = self._copy(load, self._fails_load(), self._memory.load)
        sampled = tuple(self._row(row, steps) for row in plan.rows)
        for save in plan.saves:
            copies[save.id] = self._copy(save, self._fails_save(), self._memory.save)
        return StepResult(plan.number, steps, sampled, self._logprobs(plan, sampled), copies)

    def _row(self, row: Row, steps: int) -> tuple[int, ...]:
        slot, memory = self._slots.get(row.slot), self._memory
        assert memory is not None
        if slot is None:
            return (0,) * steps if row.sample else ()  # its step before failed; nobody believes this
        tokens = [slot.last] if row.tokens is None else np.frombuffer(row.tokens, np.int32).tolist()
        sampled: list[int] = []
        start = row.start
        for _ in range(steps if row.sample else 1):
            memory.write(slot.tables, start, tokens)
            start += len(tokens)
            if row.sample:
                slot.last = choose(self.config, slot.sampling, memory.read(slot.tables, start), slot.generated)
                slot.generated += 1
                tokens = [slot.last]
                sampled.append(slot.last)
        return tuple(sampled)

    def _logprobs(
        self, plan: StepPlan, sampled: Sequence[tuple[int, ...]]
    ) -> tuple[tuple[TokenLogprob, ...], ...] | None:
        wanted = [slot.sampling.logprobs if (slot := self._slots.get(row.slot)) else None for row in plan.rows]
        if all(number is None for number in wanted):
            return None
        return tuple(
            () if number is None else tuple(TokenLogprob(-0.5, ((token, -0.5),) * min(number, 1)) for token in tokens)
            for number, tokens in zip(wanted, sampled, strict=True)
        )

    # --- copies ------------------------------------------------------------------------------------------------

    def _copy(self, copy: PageCopy, fails: bool, move: Callable[[int, int, int], None]) -> tuple[bool, ...]:
        """Copy page by page; a copy that fails does so at its last page."""
        good = len(copy.device) - fails
        for device, host in zip(copy.device[:good].tolist(), copy.host[:good].tolist(), strict=True):
            move(copy.group, device, host)
        return (True,) * good + (False,) * fails

    def _copied(
        self, loads: Sequence[PageCopy], saves: Sequence[PageCopy], copies: dict[int, tuple[bool, ...]]
    ) -> None:
        for copy in loads:
            copies[copy.id] = (not self._fails_load(),) * len(copy.device)
        for copy in saves:
            copies[copy.id] = (not self._fails_save(),) * len(copy.device)

    def _fails_load(self) -> bool:
        self.loads += 1
        return self.loads in self.config.fail_loads

    def _fails_save(self) -> bool:
        self.saves += 1
        return self.saves in self.config.fail_saves


class SimStep(Step):
    """A step of the sim runner."""

    def __init__(self, runner: SimRunner, plan: StepPlan) -> None:
        self._runner = runner
        self.plan = plan
        self.steps = 1
        self.duration = 0.0
        """Seconds on the virtual clock."""
        self.result: StepResult | None = None
        self._ripe = False

    def ripen(self) -> None:
        """The step may end now."""
        self._ripe = True
        self._runner.wake()

    def poll(self) -> StepResult | None:
        if self._ripe and self.result is None:
            self._runner.carry_out(self)
        return self.result if self._ripe else None


class _Slot:
    """A request on the runner: its page tables and what it sampled last."""

    def __init__(self, opened: SlotOpen, groups: int) -> None:
        self.sampling = opened.sampling
        self.generated = opened.generated
        self.last = -1
        self.tables: list[Ids] = [np.full(0, -1, np.int32) for _ in range(groups)]

    def edit(self, group: int, first: int, pages: Ids) -> None:
        table, end = self.tables[group], first + len(pages)
        if end > len(table):
            grown = np.full(max(end, 2 * len(table)), -1, np.int32)
            grown[: len(table)] = table
            table = self.tables[group] = grown
        table[first:end] = pages


class _Memory:
    """Page pools that hold one hash a token."""

    def __init__(self, config: SimConfig, groups: Sequence[GroupSpec]) -> None:
        self._groups = groups
        self._seeds = [seed(config, group) for group in groups]
        self._needs = [group.need for group in groups]

    def open(self, page_size: int, pages: Sequence[int]) -> None:
        self._page = page_size
        self._pools = [
            np.zeros((count, page_size, group.token_bytes), np.uint8)
            for count, group in zip(pages, self._groups, strict=True)
        ]
        self._states: list[States] = [
            pool.view(np.uint64)[:, :, :: group.token_bytes // group.heads // 8]
            for pool, group in zip(self._pools, self._groups, strict=True)
        ]

    def pin(self, arena: ArenaView) -> None:
        memory = np.frombuffer(arena.memory, np.uint8)
        self._host: list[npt.NDArray[np.uint8]] = []
        for group in range(len(self._pools)):
            offset, stride, payload = arena.slots(group)
            parts, apart = arena.parts(group)
            slots = (len(memory) - offset - (parts - 1) * apart - payload) // stride + 1 if stride else 0
            shape, strides = (slots, parts, payload), (stride, apart, 1)
            self._host.append(np.lib.stride_tricks.as_strided(memory[offset:], shape, strides, writeable=True))

    def load(self, group: int, device: int, host: int) -> None:
        page, parts = self._pools[group][device], self._host[group][host]
        cut = page.reshape(self._page, len(parts), -1)
        cut[:] = parts.reshape(len(parts), self._page, -1).swapaxes(0, 1)

    def save(self, group: int, device: int, host: int) -> None:
        page, parts = self._pools[group][device], self._host[group][host]
        cut = page.reshape(self._page, len(parts), -1).swapaxes(0, 1)
        parts.reshape(len(parts), self._page, -1)[:] = cut

    def write(self, tables: Sequence[Ids], start: int, tokens: Sequence[int]) -> None:
        """Continue the hashes that the pages hold at `start` over `tokens`."""
        positions = np.arange(start, start + len(tokens))
        for group, (table, states) in enumerate(zip(tables, self._states, strict=True)):
            before = self._seeds[group]
            if start:
                before = int(_alike(states[_page(table, (start - 1) // self._page), (start - 1) % self._page]))
            pages = table[positions // self._page]
            if len(pages) and pages.min() < 0:
                raise RuntimeError(f"a row writes to no page, from position {start} on")
            states[pages, positions % self._page] = np.array(roll(before, tokens), np.uint64)[:, None]

    def read(self, tables: Sequence[Ids], length: int) -> int:
        """One hash of all that the token at `length - 1` attends to."""
        total = 0
        for table, states, need in zip(tables, self._states, self._needs, strict=True):
            low = need.lo(length - 1)
            first = low // self._page
            pages = table[first : (length - 1) // self._page + 1]
            if pages.min() < 0:
                raise RuntimeError(f"a row at position {length - 1} reads a page that it does not have")
            at = first * self._page
            total += attend(_alike(states[pages]).reshape(-1)[low - at : length - at], low)
        return mix(total)


def _alike(heads: States) -> States:
    """The hash that all heads hold, or another one where they differ."""
    return heads[..., 0] + (heads.max(axis=-1) - heads.min(axis=-1))  # type: ignore[no-any-return]


def answer(config: SimConfig, prompt: bytes, sampling: Sampling) -> tuple[int, ...]:
    """What a runner with this config says to a prompt, worked out without pages."""
    tokens = np.frombuffer(prompt, np.int32).tolist()
    out: list[int] = []
    stops = set(sampling.stop_ids) | (set() if sampling.ignore_eos else {EOS})
    chains = [np.array(roll(seed(config, group), tokens), np.uint64) for group in config.groups]
    while len(out) < sampling.max_tokens and not stops.intersection(out[-1:]):
        length = len(tokens) + len(out)
        total = 0
        for chain, group in zip(chains, config.groups, strict=True):
            low = group.need.lo(length - 1)
            total += attend(chain[low:length], low)
        out.append(choose(config, sampling, mix(total), len(out)))
        chains = [np.append(chain, np.array(roll(int(chain[-1]), out[-1:]), np.uint64)) for chain in chains]
    return tuple(out)


def choose(config: SimConfig, sampling: Sampling, state: int, index: int) -> int:
    """The token that a state samples as the answer's number `index`: mostly letters, so that answers can be read."""
    if sampling.temperature > 0:
        state = mix(state + (sampling.seed or 0) * _STEP + index)
    if config.eos_every and (state >> 32) % config.eos_every == 0:
        return EOS
    return _LETTERS[state % len(_LETTERS)]


def seed(config: SimConfig, group: GroupSpec) -> int:
    """Where a group's hashes begin."""
    state = 0
    for byte in f"{config.model}/{group.name}".encode():
        state = mix(state + byte)
    return state


def roll(state: int, tokens: Sequence[int]) -> list[int]:
    """The hashes after each of `tokens`."""
    states = []
    for token in tokens:
        state = (state * _STEP + (token + 1) * 1442695040888963407) & _MASK
        states.append(state)
    return states


def attend(states: States, low: int) -> int:
    """One number for the hashes of positions from `low` on; the order counts."""
    weights = np.arange(low, low + len(states), dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    return mix(int((states * weights).sum(dtype=np.uint64)))


def mix(value: int) -> int:
    """Spread a number over 64 bits."""
    value &= _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def _page(table: Ids, index: int) -> int:
    page = int(table[index])
    if page < 0:
        raise RuntimeError(f"a row continues from page {index}, which it does not have")
    return page


def _same_tokens(plan: StepPlan, steps: int) -> tuple[tuple[int, ...], ...]:
    same = (_LETTERS[0],) * steps
    if plan.horizon > 1:
        return (same,) * len(plan.rows)
    return tuple([same if row.sample else () for row in plan.rows])
