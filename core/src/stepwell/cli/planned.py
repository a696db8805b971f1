"""The arithmetic of `stepwell plan`: what a prefix takes by attention group, and how many fit into each tier."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from stepwell.cache.arena import slot_bytes
from stepwell.cache.groups import Group, group_of
from stepwell.config import Config
from stepwell.errors import ConfigError
from stepwell.models import ModelShape
from stepwell.settings import CacheSettings, EngineSettings
from stepwell.sizing import Load, kept_at, size
from stepwell.types import Chunked, Full, GroupSpec, Need, Window

GIB = 2**30
DEVICE, HOST, STORAGE = "device", "host", "storage"
RUNNING = EngineSettings().max_running


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """One attention group, and what it takes of a prefix."""

    name: str
    need: str
    layers: int
    bytes_per_token: int
    bytes_per_page: int
    pages_full: int
    """Of a prefix, if all of it is kept."""
    pages_kept: int
    """What is kept of it: what it takes to go on at its end, and a page below."""
    pages_range: tuple[int, int]
    """Of prefixes that are up to a chunk longer or shorter; of all other groups the same as `pages_kept`."""


@dataclass(frozen=True, slots=True)
class TierPlan:
    """What one tier holds."""

    tier: str
    gib: float
    prefixes_full: float
    """Prefixes that fit if all of each is kept."""
    prefixes: float
    """Prefixes that fit with windows."""
    pages: Mapping[str, int]
    """Of each group; of storage, which has no pools, none."""
    shares: Mapping[str, float]
    """Of the tier's bytes."""


@dataclass(frozen=True, slots=True)
class Plan:
    """All that is said of a model."""

    model: str
    tokens: int
    page_size: int
    groups: tuple[GroupPlan, ...]
    gain: float
    """Bytes of a prefix in full over what is kept."""
    limit: float | None
    """What the gain approaches with longer prefixes; None: there is no bound."""
    tiers: tuple[TierPlan, ...]
    toml: str
    """The config that has these pools."""


def plan(shape: ModelShape, tokens: int, page: int, gib: Mapping[str, float], running: int = RUNNING) -> Plan:
    """`gib`: of each tier that there is; `running`: requests at once. ConfigError where a tier cannot hold a page."""
    specs = shape.groups()
    groups = [group_of(spec, page) for spec in specs]
    pools = _pools(specs, tokens, page, gib, running)
    tiers = tuple(_tier(name, gib[name], groups, tokens, pools.get(name, ())) for name in gib)
    full, kept = (sum(group.spec.token_bytes * pages(group, tokens) for group in groups) for pages in (_all, kept_at))
    whole = sum(spec.token_bytes for spec in specs if isinstance(spec.need, Full))
    limit = sum(spec.token_bytes for spec in specs) / whole if whole else None
    described = tuple(_described(group, tokens) for group in groups)
    toml = _toml(tokens, page, [tier for tier in tiers if tier.pages], running)
    return Plan(shape.kind, tokens, page, described, full / kept, limit, tiers, toml)


def _all(group: Group, tokens: int) -> int:
    return max(1, tokens // group.page)


def _described(group: Group, tokens: int) -> GroupPlan:
    spec, kept = group.spec, kept_at(group, tokens)
    extent = (kept, kept)
    if isinstance(spec.need, Chunked):
        around = [kept_at(group, at) for at in _extremes(tokens, spec.need.tokens, group.page)]
        extent = min(around), max(around)
    return GroupPlan(
        spec.name,
        _said(spec.need),
        len(spec.layers),
        spec.token_bytes,
        spec.token_bytes * group.page,
        _all(group, tokens),
        kept,
        extent,
    )


def _extremes(tokens: int, chunk: int, page: int) -> Iterator[int]:
    """Of lengths from `tokens` on, a page apart and up to a chunk longer: the ends, and those around a boundary.

    What is kept grows page by page between two boundaries, so the least and the most are among these.
    """
    last = (chunk - 1) // page
    for boundary in range(tokens // chunk * chunk, tokens + chunk + 1, chunk):
        near = (boundary - tokens) // page
        yield from (tokens + min(max(at, 0), last) * page for at in range(near - 1, near + 4))
    yield from (tokens, tokens + last * page)


def _said(need: Need) -> str:
    match need:
        case Full():
            return "all"
        case Window(tokens):
            return f"last {tokens} tokens"
        case Chunked(tokens):
            return f"since n x {tokens}"


def _pools(
    specs: Sequence[GroupSpec], tokens: int, page: int, gib: Mapping[str, float], running: int
) -> dict[str, Sequence[int]]:
    """Pages of each group on device and host, as the engine would size them for prefixes of this length."""
    asked = {f"cache.{tier}_gib": gib[tier] for tier in (DEVICE, HOST) if tier in gib}
    config = Config.load(None, {}, (), {"cache.page_size": page, "cache.typical_tokens": tokens, **asked})
    boundless = None if DEVICE in gib else 1 << 60
    sized = size(config, config.bind("cache", CacheSettings), specs, boundless, load=Load(running), keep=kept_at)
    return {tier: pages for tier, pages in ((DEVICE, sized.device), (HOST, sized.host)) if tier in gib}


def _tier(name: str, gib: float, groups: Sequence[Group], tokens: int, pages: Sequence[int]) -> TierPlan:
    nbytes = int(gib * GIB)
    if not nbytes:
        raise ConfigError(f"--{name}-gib {gib:g} is less than a byte")
    sizes = [group.spec.token_bytes * group.page for group in groups]
    if name != DEVICE:
        sizes = [slot_bytes(one) for one in sizes]
    kept = [kept_at(group, tokens) for group in groups]
    fit = nbytes / sum(count * one for count, one in zip(kept, sizes, strict=True))
    if pages:
        fit = min(have / count for have, count in zip(pages, kept, strict=True))
    names = [group.spec.name for group in groups]
    shares = [round(have * one / nbytes, 4) for have, one in zip(pages, sizes, strict=False)]
    return TierPlan(
        name,
        gib,
        round(nbytes / (_all(groups[0], tokens) * sum(sizes)), 2),
        round(fit, 2),
        dict(zip(names, pages, strict=False)),
        dict(zip(names, shares, strict=False)),
    )


def _toml(tokens: int, page: int, tiers: Sequence[TierPlan], running: int) -> str:
    """The pool of those who need most is the section's, the others have their own."""
    lines = [] if running == RUNNING else ["[engine]", f"max_running = {running}", ""]
    lines += ["[cache]", f"page_size = {page}", f"typical_tokens = {tokens}"]
    if not tiers:
        return "\n".join(lines)
    names = list(tiers[0].pages)
    leading = max(names, key=tiers[0].pages.__getitem__)
    lines += [f"{tier.tier}_pages = {tier.pages[leading]}" for tier in tiers]
    for name in names:
        if name != leading:
            lines += ["", f"[cache.groups.{name}]"]
            lines += [
                f"{tier.tier}_pages = {tier.pages[name]}  # {_percent(tier.shares[name])} of {tier.gib:g} GiB"
                for tier in tiers
            ]
    return "\n".join(lines)


def _percent(share: float) -> str:
    return f"{share * 100:.3g}%"
