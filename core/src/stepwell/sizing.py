"""How many pages each pool gets: as the config says, else by what its group needs of the memory there is.

Groups that need the whole history, or where there are none those that need most of it, set the pace: as many prefixes
of a typical length as they have room for, so many windows the others keep, beside those of what runs and is computed.
More pages than the pace-setters have never help a window, so none gets more unless the config says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stepwell.cache.arena import plan
from stepwell.cache.groups import Group, group_of, pages_of
from stepwell.config import Config
from stepwell.errors import ConfigError
from stepwell.settings import CacheSettings
from stepwell.suggest import meant
from stepwell.types import Chunked, Full, GroupSpec

DEFAULT_BYTES = 2**30
"""For device pages, where neither config nor runner says."""
DEFAULT_PAGES = 2**18
"""Most device pages a group where the config does not say: what a page costs in bookkeeping is not nothing."""
PREFIXES = 8
"""A pool is shaped for so many prefixes at least, be they shorter than typical: few long ones would starve the rest."""
RUNNING = 4
"""One part in so many goes to the windows of requests that run, should they be shorter than typical but many."""
FLYING = 8
"""One part in so many of what full attention has is the most that chunks in flight are given; longer ones are cut."""


Keep = Callable[[Group, int], int]


@dataclass(frozen=True, slots=True)
class Pools:
    """Pages of each group, and what one takes."""

    device: tuple[int, ...]
    host: tuple[int, ...]
    """Zeros: no host tier."""
    page_bytes: tuple[int, ...]
    slots: tuple[int, ...]
    """Bytes of a page on host, of all ranks, with trailers and padding."""


@dataclass(frozen=True, slots=True)
class Load:
    """What is in device memory beside what is kept for later."""

    running: int = 64
    """Requests that run at once."""
    chunk: int = 16_384
    """Prompt tokens that a step computes."""
    depth: int = 2
    """Steps in flight."""


def size(
    config: Config,
    settings: CacheSettings,
    groups: Sequence[GroupSpec],
    budget: int | None,
    *,
    load: Load | None = None,
    keep: Keep | None = None,
    copies: int = 1,
) -> Pools:
    """Size all pools. `budget`: bytes that the runner has for device pages. Raises ConfigError.

    `keep`: pages that a prefix of so many tokens keeps of a group; unset: `kept`.
    `copies`: so many ranks have host memory of their own, and each keeps what all of them hold alike.
    """
    names = [group.name for group in groups]
    for name in settings.groups:
        if name not in names:
            raise config.error("cache", "groups", f"the model has no group {name}{meant(name, names)}")
    page_bytes = tuple(group.token_bytes * settings.page_size for group in groups)
    regions, _ = plan(groups, settings.page_size, [0] * len(groups))
    slots = tuple(
        region.stride * (copies if group.ranks == 1 else 1) for group, region in zip(groups, regions, strict=True)
    )
    device = Tier(config, settings, groups, "device", page_bytes, load or Load(), keep or kept)
    host = Tier(config, settings, groups, "host", slots, None, keep or kept)
    return Pools(_device(device, budget), _host(host), page_bytes, slots)


def kept(group: Group, tokens: int) -> int:
    """`kept_at`, of chunks the mean over lengths around: it grows from nothing to a chunk, and starts anew."""
    need = group.spec.need
    if isinstance(need, Chunked):
        return min(max(1, tokens // group.page), pages_of(need.tokens, 2 * group.page) + 1)
    return kept_at(group, tokens)


def kept_at(group: Group, tokens: int) -> int:
    """Pages that a prefix of `tokens` tokens keeps: what is needed at its last page multiple and at one page below."""
    pages = max(1, tokens // group.page)
    return pages - group.first(pages - 1)


def _device(tier: Tier, budget: int | None) -> tuple[int, ...]:
    settings = tier.settings
    if settings.device_pages is not None:
        return tier.of_pages(settings.device_pages)
    if settings.device_gib is not None:
        return tier.of_bytes(int(settings.device_gib * 2**30))
    counts = tier.of_bytes(DEFAULT_BYTES if budget is None else budget, DEFAULT_PAGES, explicit=False)
    if not all(counts):
        raise ConfigError(_no_room(budget, settings.page_size, sum(tier.sizes)))
    return counts


def _no_room(budget: int | None, page_size: int, nbytes: int) -> str:
    free = DEFAULT_BYTES if budget is None else max(0, budget)
    remedy = "lower cache.page_size, or set cache.device_gib" if page_size > 1 and free > 0 else "use a smaller model"
    return (
        f"device memory has {free / 2**30:.3g} GiB left for pages, and a page of {page_size} tokens takes "
        f"{nbytes / 2**30:.3g} GiB; {remedy}"
    )


def _host(tier: Tier) -> tuple[int, ...]:
    settings = tier.settings
    nbytes = int((settings.host_gib or 0) * 2**30)
    counts = tier.of_bytes(nbytes) if nbytes else tier.of_pages(settings.host_pages or 0)
    if any(counts) and not all(counts):
        without = ", ".join(group.spec.name for group, count in zip(tier.groups, counts, strict=True) if not count)
        raise tier.error("groups", f"group {without} has no host pages, so no prefix could come from host")
    return counts


class Tier:
    """The pools of one tier, in the making."""

    def __init__(
        self,
        config: Config,
        settings: CacheSettings,
        specs: Sequence[GroupSpec],
        name: str,
        sizes: Sequence[int],
        load: Load | None,
        keep: Keep,
    ) -> None:
        """`sizes`: bytes of a page of each group. `load`: None where nothing runs."""
        self._config, self.settings, self.sizes = config, settings, sizes
        self.groups = [group_of(spec, settings.page_size) for spec in specs]
        self._name, self._load, self._keep = name, load, keep
        self._own = [settings.groups.get(spec.name, {}) for spec in specs]
        reach = [_reach(group) for group in self.groups]
        self._paced = [far == max(reach) for far in reach]
        """Whether a group sets the pace."""

    def of_pages(self, pages: int) -> tuple[int, ...]:
        """Where the config says how many pages full attention has."""
        own = [self._pages(at) for at in range(len(self.groups))]
        paces = [pages if mine is None else mine for mine, paced in zip(own, self._paced, strict=True) if paced]
        pace = min(paces)
        return self._checked([self._or_need(mine, at, pages, pace) for at, mine in enumerate(own)], pace)

    def of_bytes(self, nbytes: int, most: int | None = None, *, explicit: bool = True) -> tuple[int, ...]:
        """Where there are so many bytes for all groups together; at most `most` pages a group without own numbers."""
        own = [self._pages(at, nbytes) for at in range(len(self.groups))]
        left = nbytes - sum(count * size for count, size in zip(own, self.sizes, strict=True) if count is not None)
        fixed = [count for count, paced in zip(own, self._paced, strict=True) if paced and count is not None]
        bound = min([*fixed, *([] if most is None else [most]), max(0, left) // min(self.sizes)])

        def of(pace: int) -> list[int]:
            return [self._or_need(mine, at, pace, pace) for at, mine in enumerate(own)]

        low, high = 0, bound
        while low < high:
            pace = (low + high + 1) // 2
            low, high = (pace, high) if self._cost(of(pace)) <= nbytes else (low, pace - 1)
        counts = of(low)
        if explicit and not all(count for count, mine in zip(counts, own, strict=True) if mine is None):
            raise self.error(f"{self._name}_gib", self._too_little(nbytes, nbytes - left))
        limit = min(fixed, default=low)
        if low != most:
            self._fill(counts, own, limit, nbytes - self._cost(counts))
        return self._checked(counts, limit)

    def _too_little(self, nbytes: int, taken: int) -> str:
        has = f"{nbytes / 2**30:.3g} GiB"
        if taken:
            return f"{has} leave no page for a group, as the pages set in cache.groups take {taken / 2**30:.3g} GiB"
        return f"{has} hold no page, and one takes {sum(self.sizes) / 2**30:.3g} GiB"

    def _fill(self, counts: list[int], own: Sequence[int | None], limit: int, left: int) -> None:
        """What is left goes to windows, too."""
        for at, (mine, paced) in enumerate(zip(own, self._paced, strict=True)):
            if mine is None and not paced and left > 0:
                more = min(limit - counts[at], left // self.sizes[at])
                counts[at] += more
                left -= more * self.sizes[at]

    def _cost(self, counts: Sequence[int]) -> int:
        return sum(count * size for count, size in zip(counts, self.sizes, strict=True))

    def _or_need(self, own: int | None, at: int, pages: int, pace: int) -> int:
        if own is not None:
            return own
        return pages if self._paced[at] else self._need(self.groups[at], pace)

    def _need(self, group: Group, pace: int) -> int:
        """Pages of a group with a window, beside `pace` pages of those that set the pace."""
        if not pace:
            return 0
        page, typical = group.page, self.settings.typical_tokens
        tokens = min(typical, max(page, pace * page // PREFIXES))
        held = min(self._keep(other, typical) for other, paced in zip(self.groups, self._paced, strict=True) if paced)
        prefixes = max(PREFIXES, pages_of(pace, held))
        retained = min(self._keep(group, tokens), pages_of(tokens, page))
        if self._load is None:
            return min(pace, (prefixes + PREFIXES) * retained)  # fetches in flight have windows of their own
        load, runs = self._load, _runs(group)
        running = min(load.running * runs, max(prefixes * min(runs, pages_of(tokens, page) + 1), pace // RUNNING))
        flying = min(load.depth * pages_of(load.chunk, page), pace // FLYING)
        return min(pace, max(runs, running + flying + prefixes * retained))

    def _pages(self, at: int, nbytes: int = 0) -> int | None:
        """What the config says of one group."""
        own, share = self._own[at], f"{self._name}_share"
        if share in own:
            count = int(own[share] * nbytes) // self.sizes[at]
            if not count:
                text = f"{self.groups[at].spec.name}.{share} = {own[share]} of {nbytes / 2**30:.3g} GiB"
                raise self.error("groups", f"{text} holds no page of {self.sizes[at]} bytes")
            return count
        pages = own.get(f"{self._name}_pages")
        return None if pages is None else int(pages)

    def error(self, key: str, why: str) -> ConfigError:
        """About a setting of `[cache]`."""
        return self._config.error("cache", key, why)

    def _checked(self, counts: Sequence[int], pace: int) -> tuple[int, ...]:
        """A window that the config gave too little could never hold a request, or a prefix that is worth a hit."""
        for group, count, own in zip(self.groups, counts, self._own, strict=True):
            key = next((key for key in (f"{self._name}_pages", f"{self._name}_share") if key in own), None)
            least = min(pace, _runs(group) if self._load else _runs(group) - 1)
            if key and not group.full and count < least and (count or key != "host_pages"):
                needs = f"{least} pages that a {_named(group)} needs"
                raise self.error("groups", f"{group.spec.name}.{key} = {own[key]} gives {count} of the {needs}")
        return tuple(counts)


def _runs(group: Group) -> int:
    """Pages with which a request of any length runs without waiting for its own: a window, and two."""
    return _reach(group) + 2


def _reach(group: Group) -> int:
    """Pages of history that a request keeps; of full attention more than any window."""
    return 2**62 if group.full else group.runs_in(2**31) - 1


def _named(group: Group) -> str:
    need = group.spec.need
    kind = "chunk" if isinstance(need, Chunked) else "window"
    return f"{kind} of {0 if isinstance(need, Full) else need.tokens} tokens"


def describe(pools: Pools, groups: Sequence[GroupSpec], settings: CacheSettings, ranks: int = 1) -> list[str]:
    """A line for each pool: pages, bytes, and what they hold. `ranks`: how many have such pools on their devices."""
    lines = []
    page, typical = settings.page_size, settings.typical_tokens
    for tier, pages, sizes in (("device", pools.device, pools.page_bytes), ("host", pools.host, pools.slots)):
        for spec, count, nbytes in zip(groups, pages, sizes, strict=True):
            if not count:
                continue
            group = group_of(spec, page)
            many, one = count / kept(group, typical), f"a prefix of {typical} tokens"
            if not group.full:
                many, one = count / (_reach(group) + 1), f"a {_named(group)} and a page"
            size = f"{count} pages = {count * page} tokens, {_gib(count * nbytes)}"
            times = f"{many:.0f}" if many >= 100 else f"{many:.3g}"
            each = f" on each of {ranks} ranks" if tier == "device" and ranks > 1 else ""
            lines.append(f"{tier} {spec.name}: {size}{each}: room for {times} times {one}")
    return lines


def _gib(nbytes: int) -> str:
    return f"{nbytes / 2**30:.2f} GiB" if nbytes >= 2**30 else f"{nbytes / 2**20:.1f} MiB"
