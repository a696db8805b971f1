"""Core's own sections of the config, and what has to hold between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from stepwell.coerce import Secret

PAGES, SHARES, GIBS = ("device_pages", "host_pages"), ("device_share", "host_share"), ("device_gib", "host_gib")
GROUP_KEYS = (*PAGES, *SHARES)
"""What a group may set for itself."""
COUNTED = ("routing_key", "tenant")
"""What of a request counters may be kept by."""


NO_SECRET = Secret("")


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """The `[cache]` table: pages and how many of them device and host hold."""

    page_size: int = 16
    """Tokens a page."""
    device_pages: int | None = None
    """Pages in device memory for full attention; unset: `device_gib`, else what the runner finds free."""
    device_gib: float | None = None
    """Device memory for pages of all groups together."""
    host_pages: int | None = None
    """Pages in host memory for full attention; 0: no host tier. Unset: as `host_gib` says."""
    host_gib: float | None = None
    """Host memory for pages of all groups together; 0 or unset: no host tier."""
    typical_tokens: int = 4096
    """Tokens of a prefix that is worth keeping: groups with a window get as many windows as full attention has room
    for prefixes of this length. Shorter prefixes run out of windows first, longer ones of pages for full attention."""
    groups: Mapping[str, Mapping[str, int | float]] = field(default_factory=dict)
    """What one attention group has: `[cache.groups.NAME]` with `device_pages` and `host_pages`, or `device_share` and
    `host_share` of the tier's bytes. Unset: groups with a window as `typical_tokens` says, never more than the others.
    """
    save_pages_per_step: int = 256
    """Most pages copied from device to host in one step."""
    head_shards: int | None = None
    """Parts by KV heads that host and storage keep a page in. Engines with the same number read each other's pages,
    over however many ranks of it each is spread; unset: one part a rank."""

    def __post_init__(self) -> None:
        at_least("page_size", self.page_size, 1)
        at_least("device_pages", self.device_pages, 1)
        above_zero("device_gib", self.device_gib)
        at_least("host_pages", self.host_pages, 0)
        at_least("host_gib", self.host_gib, 0)
        at_least("save_pages_per_step", self.save_pages_per_step, 1)
        at_least("typical_tokens", self.typical_tokens, 1)
        at_least("head_shards", self.head_shards, 1)
        one_of_two("device_pages", self.device_pages, "device_gib", self.device_gib)
        one_of_two("host_pages", self.host_pages, "host_gib", self.host_gib)
        for name, group in self.groups.items():
            self._judge(name, group)
        for share in SHARES:
            parts = [name for name, group in self.groups.items() if share in group]
            whole = sum(self.groups[name][share] for name in parts)
            if whole > 1 + 1e-9:
                raise ValueError(
                    f"groups: {share} of {' and '.join(parts)} add up to {whole:g}, more than all there is"
                )

    def _judge(self, name: str, group: Mapping[str, int | float]) -> None:
        for key, value in group.items():
            shown = f"{name}.{key} = {value}"
            if key not in GROUP_KEYS:
                raise ValueError(f"groups: {name}.{key} is no such setting; have {', '.join(GROUP_KEYS)}")
            if key in PAGES:
                if value % 1 != 0:
                    raise ValueError(f"groups: {shown} is not a whole number of pages")
                at_least("groups", value, 1 if key == "device_pages" else 0, shown)
            elif not 0 < value < 1:
                raise ValueError(f"groups: {shown} is not between 0 and 1")
        for pages, share, nbytes in zip(PAGES, SHARES, GIBS, strict=True):
            if pages in group and share in group:
                raise ValueError(f"groups: {name} has {pages} and {share}; set one of them")
            if share in group and getattr(self, pages) is not None:
                raise ValueError(
                    f"groups: {name}.{share} is a share of bytes, and {pages} is set; set {nbytes} instead"
                )
            if share == "host_share" and share in group and not self.host_gib:
                raise ValueError(f"groups: {name}.{share} is a share of host_gib, which is not set")

    @property
    def host(self) -> bool:
        """Whether there is a host tier."""
        own = any(group.get("host_pages", 0) for group in self.groups.values())
        return bool(self.host_pages or self.host_gib or own)


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """The `[engine]` table: what is computed together, and how much may wait."""

    max_prefill_tokens: int = 16384
    """Most prompt tokens computed in one step."""
    chunk: int | None = None
    """Tokens of one prompt computed in one step; unset: what the runner prefers."""
    max_running: int = 64
    """Requests that hold pages at once."""
    max_waiting: int = 4096
    """Requests that may queue; further ones are refused."""
    look_at: int = 512
    """Requests of the queue that one admission pass looks at."""
    prefill_every: int = 1
    """While anything decodes, prompts are computed in every so-manieth step only: answers come more evenly."""
    decode_every: int = 1
    """While prompts are under way, answers go on in every so-manieth step only: prompts are done earlier. One of the
    two has to be 1."""
    max_retractions: int = 3
    """Requests that gave their pages to others so often keep them, as long as there is anybody else to take from."""
    count_by: tuple[str, ...] = ()
    """What admissions and waits are counted by, too: `routing_key`, `tenant`."""
    drain_s: float = 30.0
    """Seconds that running requests get to finish when the engine stops."""
    state_dir: Path | None = None
    """A folder that plugins may write to; unset: `stepwell` in the user's cache folder."""

    def __post_init__(self) -> None:
        for name in (
            "max_prefill_tokens", "chunk", "max_running", "max_waiting", "look_at", "prefill_every", "decode_every",
        ):  # fmt: skip
            at_least(name, getattr(self, name), 1)
        at_least("max_retractions", self.max_retractions, 0)
        if self.prefill_every > 1 and self.decode_every > 1:
            raise ValueError(
                f"prefill_every: {self.prefill_every} with decode_every = {self.decode_every} leaves steps that"
                " compute nothing; set one of them to 1"
            )
        for name in self.count_by:
            if name not in COUNTED:
                raise ValueError(f"count_by: {name!r} is nothing to count by; have {', '.join(COUNTED)}")
        at_least("drain_s", self.drain_s, 0)

    def in_pages(self, page_size: int) -> tuple[EngineSettings, list[str]]:
        """With both prefill limits rounded up to whole pages, down where that is too many, and a note for each."""
        notes = []
        settings = self
        for name in ("max_prefill_tokens", "chunk"):
            value = getattr(self, name)
            if value is not None and value % page_size:
                whole = -(-value // page_size) * page_size
                if whole >= MOST:
                    whole -= page_size
                settings = replace(settings, **{name: whole})
                text = f"engine.{name}: {value} is not a multiple of cache.page_size = {page_size}"
                notes.append(f"{text}; {whole} is used")
        return settings, notes


@dataclass(frozen=True, slots=True)
class TierSettings:
    """The `[tiers]` table: how storage is used, whichever it is."""

    io_threads: int = 4
    """Threads that call the storage backend."""
    timeout_s: float = 10.0
    """Seconds after which a call counts as failed; its pages stay with it until it returns."""
    retries: int = 2
    """Further tries for a page that could not be written."""
    breaker_failures: int = 5
    """Failures in a row after which storage is left alone for `breaker_s`."""
    breaker_s: float = 10.0
    """Seconds until one call tries whether storage works again."""
    fetch_pages: int = 4096
    """Most pages on their way from storage at once."""
    stuck_calls: int = 8
    """Calls beyond their deadline at which no new one is started."""
    own_process: bool | Literal["auto"] = "auto"
    """Whether storage runs in a process of its own, so that a client that hangs, holds everything up or crashes costs
    hits only; `auto` where it says that its client may. A call that is away for three times `timeout_s` ends that
    process, and another is started."""

    def __post_init__(self) -> None:
        for name in ("io_threads", "breaker_failures", "fetch_pages", "stuck_calls"):
            at_least(name, getattr(self, name), 1)
        at_least("retries", self.retries, 0)
        above_zero("timeout_s", self.timeout_s)
        above_zero("breaker_s", self.breaker_s)


@dataclass(frozen=True, slots=True)
class RankSettings:
    """The `[ranks]` table: over how many processes and devices a model is spread."""

    tp: int = 1
    """Tensor-parallel ranks of one group: each has a part of every layer, in a process of its own."""
    dp: int = 1
    """Groups, each with a whole model, a cache and a scheduler of its own, behind one front end."""
    first_device: int = 0
    """Number of the first device; group g, rank r has device first_device + g * tp + r."""
    timeout_s: float = 60.0
    """Seconds that a step may take on one rank. A rank that takes longer, or is not heard, ends the engine."""
    start_s: float = 900.0
    """Seconds until every rank must have its part of the model."""
    arena: Literal["shared", "own"] = "shared"
    """Host memory for pages: one that all ranks of a host share, or one a rank, which then reads and writes storage by
    itself. Ranks on several hosts always have their own."""
    launcher: Literal["own", "external"] = "own"
    """Who starts the ranks: the engine itself, on this machine; or somebody else, such as torchrun, who sets RANK,
    WORLD_SIZE, MASTER_ADDR and MASTER_PORT for `stepwell rank`."""
    group: int = 0
    """Which of the dp groups this engine is; the launcher sets it."""
    commons: str = ""
    """Where the runners of all dp groups meet, if they compute together; the launcher sets it."""
    listen: str = "127.0.0.1"
    """With an external launcher: the address of this host at which ranks of others reach the engine."""
    port: int = 0
    """The port for that; 0: the one after MASTER_PORT."""
    secret: Secret = NO_SECRET
    """With an external launcher: what ranks and engine know of each other, the same everywhere and told to nobody."""

    def __post_init__(self) -> None:
        at_least("tp", self.tp, 1)
        at_least("dp", self.dp, 1)
        at_least("first_device", self.first_device, 0)
        at_least("group", self.group, 0)
        if not 0 <= self.port < 2**16:
            raise ValueError(f"port: {self.port} is no port")
        above_zero("timeout_s", self.timeout_s)
        above_zero("start_s", self.start_s)


CORE_SECTIONS: Mapping[str, type] = {
    "cache": CacheSettings,
    "engine": EngineSettings,
    "tiers": TierSettings,
    "ranks": RankSettings,
}
"""Sections that core binds itself."""

ROLES: Mapping[str, str] = {
    "runner": "runner",
    "evict": "evict",
    "write": "write",
    "retain": "retain",
    "schedule": "schedule",
    "storage": "storage",
    "prefetch": "prefetch",
    "sink": "sink",
    "route": "route",
}
"""Sections in which `use` chooses an offer, and the kind of that offer."""

INSIDE: Mapping[str, str] = {
    "attention": "runner.attention",
    "dispatch": "runner.dispatch",
    "balance": "runner.balance",
}
"""Kinds of offers that a setting of another section chooses, and the table below that setting."""

SECTIONS = (*CORE_SECTIONS, *ROLES, "replay")

UNUSED: Mapping[str, str] = {"route": "there is one engine here to choose from (ranks.dp = 1)"}
"""Why nothing uses a section, where that can be said."""

ROUTE = "cache-aware"
"""What chooses among several engines where the config does not say."""

DEFAULTS: Mapping[str, str] = {
    "evict": "lru",
    "write": "write_through_selective",
    "retain": "tail",
    "schedule": "fcfs",
    "prefetch": "timeout",
}
"""What a role uses where the config does not say."""


MOST = 2**27
"""What no setting reaches: as pages, their bookkeeping alone would take gigabytes."""


def at_least(name: str, value: float | None, least: float, shown: str = "") -> None:
    """ValueError where a value that is set is too small, absurdly large, or no number."""
    if value is not None and not least <= value < MOST:
        limit = f"less than {least}" if value < least else _beyond(value)
        raise ValueError(f"{name}: {shown or value} is {limit}")


def above_zero(name: str, value: float | None) -> None:
    """ValueError where a value that is set is not positive, absurdly large, or no number."""
    if value is not None and not 0 < value < MOST:
        limit = "not above 0" if value <= 0 else _beyond(value)
        raise ValueError(f"{name}: {value} is {limit}")


def _beyond(value: float) -> str:
    return "no number" if value != value else "more than can be meant"


def one_of_two(name: str, value: object, other: str, second: object) -> None:
    """ValueError where both of two ways to say the same are used."""
    if value is not None and second is not None:
        raise ValueError(f"{name}: {other} is set too; set one of them")
