"""How many pages each pool gets: as the config says, else what memory there is, the same number for every group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stepwell.cache.arena import slot_bytes
from stepwell.config import Config
from stepwell.errors import ConfigError
from stepwell.settings import CacheSettings
from stepwell.suggest import meant
from stepwell.types import GroupSpec

DEFAULT_BYTES = 2**30
"""For device pages, where neither config nor runner says."""
DEFAULT_PAGES = 2**18
"""Most device pages a group where the config does not say: what a page costs in bookkeeping is not nothing."""


@dataclass(frozen=True, slots=True)
class Pools:
    """Pages of each group, and what one takes."""

    device: tuple[int, ...]
    host: tuple[int, ...]
    """Zeros: no host tier."""
    page_bytes: tuple[int, ...]
    slots: tuple[int, ...]
    """Bytes of a page on host, with its trailer and padding."""


def size(config: Config, settings: CacheSettings, groups: Sequence[GroupSpec], budget: int | None) -> Pools:
    """Size all pools. `budget`: bytes that the runner has for device pages. Raises ConfigError."""
    names = [group.name for group in groups]
    for name in settings.groups:
        if name not in names:
            raise config.error("cache", "groups", f"the model has no group {name}{meant(name, names)}")
    page_bytes = tuple(group.token_bytes * settings.page_size for group in groups)
    slots = tuple(slot_bytes(nbytes) for nbytes in page_bytes)
    return Pools(
        _device(config, settings, names, page_bytes, budget), _host(config, settings, names, slots), page_bytes, slots
    )


def _device(
    config: Config, settings: CacheSettings, names: Sequence[str], page_bytes: Sequence[int], budget: int | None
) -> tuple[int, ...]:
    own = [settings.groups.get(name, {}).get("device_pages") for name in names]
    if settings.device_pages is not None:
        pages = settings.device_pages
    elif settings.device_gib is not None:
        pages = _share(int(settings.device_gib * 2**30), own, page_bytes)
        if not pages and None in own:
            one = sum(page_bytes) / 2**30
            raise config.error("cache", "device_gib", f"{settings.device_gib} hold no page, and one takes {one:.3g}")
    else:
        pages = min(_share(DEFAULT_BYTES if budget is None else budget, own, page_bytes), DEFAULT_PAGES)
        if not pages and None in own:
            raise ConfigError(_no_room(budget, settings.page_size, sum(page_bytes)))
    return tuple(pages if mine is None else mine for mine in own)


def _no_room(budget: int | None, page_size: int, nbytes: int) -> str:
    free = DEFAULT_BYTES if budget is None else max(0, budget)
    remedy = "lower cache.page_size, or set cache.device_gib" if page_size > 1 and free > 0 else "use a smaller model"
    return (
        f"device memory has {free / 2**30:.3g} GiB left for pages, and a page of {page_size} tokens takes "
        f"{nbytes / 2**30:.3g} GiB; {remedy}"
    )


def _host(config: Config, settings: CacheSettings, names: Sequence[str], slots: Sequence[int]) -> tuple[int, ...]:
    own = [settings.groups.get(name, {}).get("host_pages") for name in names]
    pages = settings.host_pages or 0
    if settings.host_gib:
        pages = _share(int(settings.host_gib * 2**30), own, slots)
        if not pages and None in own:
            one = sum(slots) / 2**30
            raise config.error("cache", "host_gib", f"{settings.host_gib} hold no page, and one takes {one:.3g}")
    counts = tuple(pages if mine is None else mine for mine in own)
    if any(counts) and not all(counts):
        without = ", ".join(name for name, count in zip(names, counts, strict=True) if not count)
        raise config.error("cache", "groups", f"group {without} has no host pages, so no prefix could come from host")
    return counts


def _share(nbytes: int, own: Sequence[int | None], page_bytes: Sequence[int]) -> int:
    """Pages for each group that has no number of its own, out of what the others leave."""
    left = nbytes - sum(count * size for count, size in zip(own, page_bytes, strict=True) if count is not None)
    each = sum(size for count, size in zip(own, page_bytes, strict=True) if count is None)
    return max(0, left // each) if each else 0
