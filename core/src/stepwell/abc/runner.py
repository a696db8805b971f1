"""What computes: owns device memory, carries out step plans, answers with tokens and bitmaps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec

from stepwell.types import ArenaView, GroupSpec, Ids, Sampling, TokenLogprob


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What the rest of the system must know of a model."""

    name: str
    fingerprint: str
    """Changes whenever weights or architecture change; part of every namespace."""
    kv_dtype: str
    layout: str
    """Version of the byte order inside a page; part of every namespace."""
    context: int
    """Most tokens of prompt and answer together."""
    vocab: int
    eos: tuple[int, ...]


class Row(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One request's share of a step: `count` tokens from position `start`.

    A struct, because one is made for every request and step: a tenth of a frozen dataclass's time.
    """

    slot: int
    start: int
    count: int
    tokens: bytes | None
    """int32 bytes of `count` tokens; None: the one token that was last sampled for this slot."""
    sample: bool
    """Whether the logits of the last token are sampled."""


@dataclass(frozen=True, slots=True)
class SlotOpen:
    """A slot gets a request: before this plan's rows. Its page tables start empty."""

    slot: int
    sampling: Sampling
    prompt: bytes
    """int32 bytes of everything before the first sampled token (penalties look at it)."""
    generated: int
    """How many of the last tokens of `prompt` were generated before (a retracted request); seeds count on."""


@dataclass(frozen=True, slots=True)
class TableEdit:
    """Pages [first, first + len(pages)) of a slot's table in a group become `pages`; -1: released."""

    slot: int
    group: int
    first: int
    pages: Ids


@dataclass(frozen=True, slots=True)
class PageCopy:
    """Copies between device and host pages of one group, page `device[i]` with `host[i]`."""

    id: int
    group: int
    device: Ids
    host: Ids


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Everything a runner needs for one step; plain data, never changed after launch.

    Order: closes, opens, tables, then saves may start; loads, layer by layer before the layer that reads them; rows.
    A save reads pages whose steps have completed, and which nothing writes before the save has ended.
    """

    number: int
    rows: tuple[Row, ...] = ()
    opens: tuple[SlotOpen, ...] = ()
    closes: tuple[int, ...] = ()
    tables: tuple[TableEdit, ...] = ()
    loads: tuple[PageCopy, ...] = ()
    saves: tuple[PageCopy, ...] = ()
    horizon: int = 1
    """Every row is a decode row and nothing can change for so many steps; pages for all of them are in the tables."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step did."""

    number: int
    steps: int = 1
    """Decode steps done, 1 to the plan's horizon."""
    tokens: tuple[tuple[int, ...], ...] = ()
    """For each row of the plan the sampled ids: `steps` of them, none where the row does not sample."""
    logprobs: tuple[tuple[TokenLogprob, ...], ...] | None = None
    """Parallel to `tokens`, where any row asked for them."""
    copies: Mapping[int, tuple[bool, ...]] = field(default_factory=dict)
    """For each load and save by id: which pages were copied whole. A copy that is not listed failed.

    Of a runner with `late_saves` the loads alone.
    """
    error: str | None = None
    """The step failed as a whole: no row counts."""


class Step(ABC):
    """A step in flight."""

    @abstractmethod
    def poll(self) -> StepResult | None:
        """The result once everything of the step is done, copies included; None before. Never blocks.

        With `late_saves` its saves are no part of it.
        """


class Runner(ABC):
    """Owns a model's weights and page pools on one rank. Called from one thread.

    Steps complete in launch order. Pages hold K and V of `page_size` tokens of all layers of their group.

    One of several ranks (an offer that declares RANKS, `Context.world` above 1) is a runner like any other in a process
    of its own: all get the same plans in the same order, and their answers are combined page by page. It keeps its own
    heads of each page, or all of them (`GroupSpec.ranks`), and must sample the same tokens as the others.
    """

    model: ModelInfo
    groups: tuple[GroupSpec, ...]
    preferred_chunk: int
    """Tokens of prefill a step that this device does well; on a slow device small, so that an abort waits little."""
    depth: int = 2
    """Steps that may be in flight."""
    max_steps: int = 1
    """Longest horizon it can use."""
    late_saves: bool = False
    """Whether saves go on behind the steps after theirs: a StepResult leaves them out, and `saved` tells of them."""

    @abstractmethod
    def open(self, page_size: int, pages: Mapping[str, int], slots: int, wake: Callable[[], None]) -> None:
        """Allocate `pages[group]` pages and `slots` slots, once. `wake()` is called whenever poll may have news."""

    @abstractmethod
    def pin(self, arena: ArenaView) -> None:
        """Make the host arena reachable for copies, once, after `open`.

        A page's slot holds `arena.parts(group)`, this rank's own heads in order: part i has the bytes of heads
        [i * heads / parts, (i + 1) * heads / parts) of all layers.
        """

    @abstractmethod
    def launch(self, plan: StepPlan) -> Step:
        """Start a step and return at once."""

    def saved(self) -> Mapping[int, tuple[bool, ...]]:
        """With `late_saves`: the saves that ended since this was last asked, in any order. Never blocks.

        By id, which pages were copied whole. Every save of a plan that was launched ends once, also where its step
        failed; until then it owns the pages that it reads and those that it writes. `wake()` is called for them, too.
        """
        return {}

    def budget(self) -> int | None:
        """Bytes of device memory that page pools may take, where the runner can tell."""
        return None

    def values(self) -> Mapping[str, float]:
        """Numbers to be shown beside the engine's: counts, and how things stand. Cheap; called on any thread."""
        return {}

    def close(self) -> None:  # noqa: B027 - a runner may hold nothing
        """Release everything; the last call. After it nothing touches the arena, be it a save that had not ended."""
