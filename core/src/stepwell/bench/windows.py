"""`stepwell bench windows`: what caching sliding-window layers as windows saves, next to caching them whole.

Two caches serve the same requests chunk by chunk: in one every layer keeps the whole history, in the other each layer
keeps what it needs. Nothing is taken from a formula: bytes on host come from the usage of the pools, bytes moved from
the copies carried out, checked against the counters; a cached request is one that can go on at its full length.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable
from dataclasses import dataclass

import click
from rich.console import Console
from rich.table import Table

from stepwell.abc.runner import PageCopy
from stepwell.builtin.lru import Lru
from stepwell.builtin.retain import Tail
from stepwell.builtin.writers import WriteThrough
from stepwell.cache.arena import plan
from stepwell.cache.cache import Cache, CacheShape
from stepwell.cache.groups import pages_of
from stepwell.cache.node import DEVICE
from stepwell.errors import ConfigError
from stepwell.models import LayerShape, ModelShape
from stepwell.types import TOKEN_BYTES, Full, GroupSpec, Tier, Window

NAMESPACE = bytes(32)
ROOM = 24
"""Requests that the host memory holds where every layer keeps everything."""
MEASURED = 3
"""Requests that bytes are measured on; they must all fit."""
AT_ONCE = 4096
MOST = 2**22
"""Tokens of a request, a chunk or a page: tokens are 32 bits, and no two requests share one."""
HEADS, DIM, ITEM_BYTES = 8, 128, 2


@dataclass(frozen=True, slots=True)
class Mix:
    """The layers of a model."""

    name: str
    full: int
    windows: int
    window: int
    """Tokens that such a layer sees, the one being computed included, as configs count them."""

    def groups(self, *, whole: bool) -> tuple[GroupSpec, ...]:
        """Its attention groups; `whole`: as if every layer needed everything."""
        needs = [Full()] * self.full + [Full() if whole else Window(self.window - 1)] * self.windows
        layers = tuple(LayerShape(need, HEADS, DIM, DIM) for need in needs)
        return ModelShape(self.name, layers, 0, ITEM_BYTES).groups()

    def gain(self, tokens: int, page: int) -> float:
        """What arithmetic says: of a window layer one window of whole pages instead of all tokens."""
        share = min(1.0, pages_of(self.window - 1, page) * page / tokens)
        return (self.full + self.windows) / (self.full + share * self.windows)


MIXES = (
    Mix("gpt-oss-like, 12 full and 12 window layers", 12, 12, 128),
    Mix("Gemma 3 27B, 10 full and 52 window layers", 10, 52, 1024),
    Mix("MiMo-like, 1 full and 9 window layers", 1, 9, 128),
)


@dataclass(frozen=True, slots=True)
class Work:
    """The requests that are served."""

    tokens: int
    page: int
    chunk: int

    @property
    def pages(self) -> int:
        """Pages of a request where everything is kept."""
        return pages_of(self.tokens, self.page)

    @property
    def usable(self) -> int:
        """Tokens in whole pages: what can be found of a request."""
        return self.tokens // self.page * self.page

    def prompt(self, number: int) -> bytes:
        """The tokens of a request; no two requests share one."""
        return array("i", range(number * self.tokens, (number + 1) * self.tokens)).tobytes()


@dataclass(frozen=True, slots=True)
class Cost:
    """What one request takes."""

    pages: tuple[int, ...]
    """On host, by group."""
    slot_bytes: float
    """Of host memory for them, trailers and padding included."""
    page_bytes: float
    """Of K and V in them."""
    moved: float
    """Bytes saved when it ran and loaded when a follow-up went on."""


class Desk:
    """A cache, and somebody who carries its copies out."""

    def __init__(self, groups: tuple[GroupSpec, ...], work: Work, host: Iterable[int]) -> None:
        device = work.pages + pages_of(work.chunk, work.page) + 2
        self.cache = Cache(
            CacheShape(groups, work.page, (device,) * len(groups), tuple(host)),
            evict=lambda tier, group: Lru(),
            write=WriteThrough(),
            retain=Tail(),
        )
        self.work = work
        self.moved = 0
        self._bytes = [group.token_bytes * work.page for group in groups]
        self._pages = 0

    def serve(self, tokens: bytes) -> None:
        """A request as the engine runs it: by chunks, letting go of what no later token needs, saved as it goes."""
        cache, work = self.cache, self.work
        lease = cache.admit(NAMESPACE, tokens, lambda found: min(work.chunk, work.tokens))
        if lease is None:
            raise RuntimeError("the bench's device pool is too small")
        done = 0
        while done < work.tokens:
            done = min(done + work.chunk, work.tokens)
            if not cache.extend(lease, done):
                raise RuntimeError("the bench's device pool is too small for a further chunk")
            cache.publish(lease, tokens[: done * TOKEN_BYTES], final=done == work.tokens)
            cache.trim(lease, done)
            self._save()
        cache.close(lease)
        self._save()

    def forget(self) -> None:
        """Leave nothing on device."""
        for group, pages in enumerate(self.cache.shape.device_pages):
            self.cache._evictor.evict(DEVICE, group, pages)

    def follow_up(self, tokens: bytes) -> None:
        """A request a page longer, of which nothing is on device: all that it needs is loaded."""
        longer = tokens + bytes(self.work.page * TOKEN_BYTES)
        lease = self.cache.admit(NAMESPACE, longer, lambda found: len(longer) // TOKEN_BYTES)
        if lease is None or lease.cached.total != self.work.usable:
            raise RuntimeError("the bench's follow-up does not find its prefix on host")
        for copy in lease.loads:
            self._carry(copy)
            self.cache.loaded(lease, copy, [True] * len(copy.device))
        self.cache.close(lease)

    def finds(self, longer: bytes) -> bool:
        """Whether a prompt and something more could go on at the prompt's full length."""
        return self.cache.probe(NAMESPACE, longer) == self.work.usable

    def check(self) -> None:
        """The copies carried out are those that the cache counts."""
        counted = self.cache.stats.saved + self.cache.stats.loaded
        if counted != self._pages:
            raise RuntimeError(f"{self._pages} pages were copied and {counted} are counted")

    def _save(self) -> None:
        while copies := self.cache.saves(AT_ONCE):
            for copy in copies:
                self._carry(copy)
                self.cache.saved(copy, [True] * len(copy.device))

    def _carry(self, copy: PageCopy) -> None:
        self._pages += len(copy.device)
        self.moved += len(copy.device) * self._bytes[copy.group]


def cost(groups: tuple[GroupSpec, ...], work: Work) -> Cost:
    """Serve requests, forget them on device, and go on with each."""
    desk = Desk(groups, work, [MEASURED * work.pages] * len(groups))
    for number in range(MEASURED):
        desk.serve(work.prompt(number))
    used = [usage.total - usage.free for usage in desk.cache.usage()[Tier.HOST]]
    desk.forget()
    for number in range(MEASURED):
        desk.follow_up(work.prompt(number))
    desk.check()
    regions, _ = plan(groups, work.page, used)
    return Cost(
        tuple(count // MEASURED for count in used),
        sum(count * at.stride for count, at in zip(used, regions, strict=True)) / MEASURED,
        sum(count * at.payload * at.parts for count, at in zip(used, regions, strict=True)) / MEASURED,
        desk.moved / MEASURED,
    )


def cached(groups: tuple[GroupSpec, ...], work: Work, nbytes: int) -> int:
    """How many requests can go on at their full length, all of them, with so much host memory for one group."""
    host = nbytes // plan(groups, work.page, (1,))[0][0].stride
    desk = Desk(groups, work, (host,))
    served: list[bytes] = []
    while all(desk.finds(tokens) for tokens in served):
        tokens = work.prompt(len(served))
        desk.serve(tokens)
        desk.forget()
        served.append(tokens + bytes(TOKEN_BYTES))
    return len(served) - 1


def measure(window: int, tokens: int, page: int, chunk: int) -> dict[str, object]:
    """Measure the window layers alone, then whole models."""
    work = Work(tokens, page, chunk)
    layers = Mix("window layers alone", 0, 1, window)
    whole, apart = layers.groups(whole=True), layers.groups(whole=False)
    all_kept, windows = cost(whole, work), cost(apart, work)
    room = ROOM * all_kept.slot_bytes
    requests = [cached(groups, work, int(room)) for groups in (whole, apart)]
    return {
        "window": window,
        "tokens": tokens,
        "page": page,
        "chunk": chunk,
        "host_pages": {"whole": all_kept.pages[0], "windows": windows.pages[0]},
        "host_bytes_ratio": all_kept.slot_bytes / windows.slot_bytes,
        "moved_bytes_ratio": all_kept.moved / windows.moved,
        "cached_requests": {"whole": requests[0], "windows": requests[1]},
        "cached_requests_ratio": requests[1] / requests[0],
        "mixes": [_mixed(mix, work) for mix in MIXES],
    }


def _mixed(mix: Mix, work: Work) -> dict[str, object]:
    whole, apart = cost(mix.groups(whole=True), work), cost(mix.groups(whole=False), work)
    measured, formula = whole.page_bytes / apart.page_bytes, mix.gain(work.tokens, work.page)
    return {
        "name": mix.name,
        "measured": measured,
        "formula": formula,
        "off": abs(measured / formula - 1),
        "slots": whole.slot_bytes / apart.slot_bytes,
        "moved": whole.moved / apart.moved,
    }


def _show(result: dict[str, object]) -> None:
    console = Console()
    pages, requests, mixes = result["host_pages"], result["cached_requests"], result["mixes"]
    assert isinstance(pages, dict) and isinstance(requests, dict) and isinstance(mixes, list)
    title = f"Window layers alone: window {result['window']}, {result['tokens']} tokens, page {result['page']}"
    table = Table("a request", "whole", "windows", "times less", title=title)
    table.add_row("pages on host", str(pages["whole"]), str(pages["windows"]), f"{result['host_bytes_ratio']:.2f}")
    table.add_row("bytes saved and loaded", "", "", f"{result['moved_bytes_ratio']:.2f}")
    table.add_row(
        "requests in the same memory",
        *(str(requests[way]) for way in ("whole", "windows")),
        f"{result['cached_requests_ratio']:.2f}",
    )
    console.print(table)
    table = Table("model", "host bytes", "by arithmetic", "off", "bytes moved", title="All layers together, times less")
    for row in mixes:
        table.add_row(
            row["name"],
            f"{row['measured']:.2f}",
            f"{row['formula']:.2f}",
            f"{row['off']:.1%}",
            f"{row['moved']:.2f}",
        )
    console.print(table)


@click.command("windows")
@click.option(
    "--window", default=4096, show_default=True, type=click.IntRange(2, MOST), help="Tokens that a layer sees."
)
@click.option("--tokens", default=20_480, show_default=True, type=click.IntRange(1, MOST), help="Of each request.")
@click.option("--page", default=16, show_default=True, type=click.IntRange(1, MOST), help="Tokens of a page.")
@click.option(
    "--chunk", default=16_384, show_default=True, type=click.IntRange(1, MOST), help="Tokens computed at once."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of tables.")
def command(window: int, tokens: int, page: int, chunk: int, as_json: bool) -> None:
    """Host memory and copied bytes of sliding-window layers, next to keeping all of their tokens."""
    if tokens < page:
        raise ConfigError(f"--tokens {tokens} fill no page of {page}: give at least as many tokens as --page")
    result = measure(window, tokens, page, chunk)
    if as_json:
        click.echo(json.dumps(result, indent=2))
    else:
        _show(result)
