"""`stepwell bench branches`: what retention policies keep of the hits where sessions grow and branch.

Traffic. A session begins with a prompt that nobody has seen, or as a branch off an earlier path; it grows by turns, of
which each adds a question and an answer, while others do. Branches leave at a *known point*, where a request ended or
a branch left before, and as many at a *fresh point*, anywhere in an earlier path, wherever its pages end. Which point,
or whose path, is drawn from all ends and branches so far: the n-th latest with a chance of 1/n, so what is recent is
likely, nothing is too old, and what many left before is likely to be left again. No two questions share a token.

Pools. The full pool holds two thirds of all tokens that differ, 4.9 of 7.4 million unless told otherwise, so full
attention alone evicts a third and loses a few hits. The window pool has a share of its pages, those of 74,000 tokens,
and a chunk in flight with the window before it has to lie in them as well: 16,384 tokens are more than a fifth of it.

Requests are served one at a time by the real cache, chunk by chunk, with time taken out. Hits are compared with those
of the same requests on a cache that has the full group alone.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

import click
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from stepwell.abc.retain import RetentionPolicy
from stepwell.abc.write import Cause, Decision, Edge, WritePolicy
from stepwell.assemble import Place, make
from stepwell.builtin.lru import Lru
from stepwell.builtin.retain import Tail
from stepwell.cache.cache import Cache, CacheShape
from stepwell.cache.groups import pages_of
from stepwell.cache.node import Node
from stepwell.cli.options import Number, read_config, set_option
from stepwell.engine.contain import SafeRetention
from stepwell.errors import ConfigError, PluginError
from stepwell.types import TOKEN_BYTES, Full, GroupSpec, Window

NAMESPACE = bytes(32)
AT_ONCE = 32
"""Sessions that take turns."""
FIRST, QUESTION, ANSWER = (4_000, 36_000), (500, 5_500), (100, 1_000)
"""Tokens of a session's first question, of each further one, and of an answer: any number between is as likely."""
BRANCHES = 0.5
"""Share of sessions that begin as a branch."""
ROOM = 2 / 3
"""Share of all tokens that the full pool holds."""
REQUESTS = 50_000
"""Most of them: all their tokens are in memory, hundreds of megabytes for a few thousand."""
MOST = 2**22
"""Tokens of a page, a chunk or a window."""
NEW, TURN, KNOWN, FRESH = KINDS = ("new", "turn", "known", "fresh")


# region: traffic


class Point(NamedTuple):
    """Where a request ended, or a branch left."""

    session: int
    length: int


class Request(NamedTuple):
    """One turn of a session."""

    kind: str
    session: int
    prompt: int
    """Tokens, counted from the start of the session's path."""
    end: int
    """With the answer."""
    left: Point | None
    """Where it left an earlier path."""


@dataclass
class Traffic:
    """Requests in order, and the path that each session comes to in the end; its turns are prefixes of it."""

    requests: list[Request] = field(default_factory=list)
    paths: list[array[int]] = field(default_factory=list)
    tokens: int = 0
    """That differ."""

    @classmethod
    def of(cls, sessions: int, turns: int, seed: int) -> Traffic:
        """Traffic of so many sessions, with so many turns on average."""
        traffic, draw = cls(), Random(seed)
        points: list[Point] = []
        going: list[tuple[int, int]] = []
        while going or len(traffic.paths) < sessions:
            if len(going) < AT_ONCE and len(traffic.paths) < sessions:
                session, more = len(traffic.paths), draw.randint(1, 2 * turns - 1)
                traffic._begin(draw, points)
            else:
                session, more = going.pop(draw.randrange(len(going)))
                traffic._ask(TURN, session, draw.randint(*QUESTION))
            traffic._answer(session, draw.randint(*ANSWER))
            points.append(Point(session, len(traffic.paths[session])))
            if more > 1:
                going.append((session, more - 1))
        return traffic

    def prompts(self, kind: str) -> int:
        """Prompt tokens of the requests of a kind."""
        return sum(request.prompt for request in self.requests if request.kind == kind)

    def _begin(self, draw: Random, points: list[Point]) -> None:
        session = len(self.paths)
        if not points or draw.random() >= BRANCHES:
            self.paths.append(array("i"))
            self._ask(NEW, session, draw.randint(*FIRST))
            return
        latest = int(len(points) ** draw.random())
        left = points[-latest]
        kind = KNOWN if draw.random() < 0.5 else FRESH
        if kind is FRESH:
            left = Point(left.session, draw.randint(1, left.length))
        points.append(left)
        self.paths.append(self.paths[left.session][: left.length])
        self._ask(kind, session, draw.randint(*QUESTION), left)

    def _ask(self, kind: str, session: int, tokens: int, left: Point | None = None) -> None:
        self._add(session, tokens)
        self.requests.append(Request(kind, session, len(self.paths[session]), 0, left))

    def _answer(self, session: int, tokens: int) -> None:
        self._add(session, tokens)
        self.requests[-1] = self.requests[-1]._replace(end=len(self.paths[session]))

    def _add(self, session: int, tokens: int) -> None:
        """Tokens that are in no path yet."""
        self.paths[session].extend(range(self.tokens, self.tokens + tokens))
        self.tokens += tokens


# endregion

# region: serving it


@dataclass(frozen=True, slots=True)
class Work:
    """What all policies are given."""

    traffic: Traffic
    page: int
    chunk: int
    share: float

    @property
    def full_pages(self) -> int:
        """Of the full pool."""
        return int(self.traffic.tokens * ROOM) // self.page

    @property
    def window_pages(self) -> int:
        """Of the window pool."""
        return int(self.full_pages * self.share)

    @property
    def longest(self) -> int:
        """Pages of the full pool without which the longest request cannot be computed."""
        return max(pages_of(request.end, self.page) for request in self.traffic.requests)

    def needed(self, window: int) -> int:
        """Pages without which a chunk cannot be computed."""
        return pages_of(self.chunk, self.page) + pages_of(window, self.page) + 1


class _Never(WritePolicy):
    def decide(self, edge: Edge, cause: Cause, uses: int) -> Decision:
        return Decision.NEVER


class Asking(RetentionPolicy):
    """Counts the lengths that a policy asks for. One that asks for what there is not has no place in a comparison."""

    def __init__(self, name: str, inner: RetentionPolicy) -> None:
        self.asked = 0
        self._name = name
        self._inner = SafeRetention(inner, self._fault)

    def keep(self, length: int, page: int, branches: Sequence[int]) -> Sequence[int]:
        return self._counted(self._inner.keep(length, page, branches))

    def along(self, start: int, end: int, page: int, branches: Sequence[int]) -> Sequence[int]:
        return self._counted(self._inner.along(start, end, page, branches))

    def prompted(self, length: int, page: int) -> Sequence[int]:
        return self._counted(self._inner.prompted(length, page))

    def _counted(self, lengths: Sequence[int]) -> Sequence[int]:
        self.asked += len(lengths)
        return lengths

    def _fault(self, what: str) -> None:
        raise PluginError(f"retain.use = {self._name!r}: {what}")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one cache made of the traffic."""

    hits: dict[str, int]
    """Tokens, by kind of request."""
    held: int
    """Windows in the end."""


def serve(work: Work, groups: tuple[GroupSpec, ...], retain: RetentionPolicy, tick: Callable[[], None]) -> Outcome:
    """All requests, one after another."""
    pages = (work.full_pages, work.window_pages)[: len(groups)]
    cache = Cache(
        CacheShape(groups, work.page, pages, (0,) * len(groups)),
        evict=lambda tier, group: Lru(),
        write=_Never(),
        retain=retain,
    )
    hits = dict.fromkeys(KINDS, 0)
    for request in work.traffic.requests:
        tokens = work.traffic.paths[request.session][: request.end].tobytes()
        hits[request.kind] += _one(cache, request, tokens, work.chunk)
        tick()
    return Outcome(hits, sum(_ends(node) for node in _nodes(cache)) if len(groups) > 1 else 0)


def _one(cache: Cache, request: Request, tokens: bytes, chunk: int) -> int:
    """One request as the engine runs it: the prompt by chunks, then the answer; answers its hit tokens.

    The answer's last token is never computed.
    """
    prompt = tokens[: request.prompt * TOKEN_BYTES]
    lease = cache.admit(NAMESPACE, prompt, lambda found: min(found + chunk, request.prompt))
    if lease is None:
        raise RuntimeError("the bench's pools are too small")
    hit = done = lease.cached.total
    while done < request.end - 1:
        done = min(done + chunk, request.prompt if done < request.prompt else request.end - 1)
        if not cache.extend(lease, done):
            raise RuntimeError("the bench's pools are too small for a further chunk")
        cache.publish(lease, tokens[: done * TOKEN_BYTES], final=done == request.end - 1)
        cache.trim(lease, done)
    cache.close(lease)
    return hit


def _nodes(cache: Cache) -> Iterator[Node]:
    stack: list[Node] = list(cache._index.roots.values())
    while stack:
        node = stack.pop()
        stack.extend(node.children.values())
        yield node


def _ends(node: Node) -> int:
    run = node.runs[1]
    return len(run.ends) if run is not None else 0


# endregion

# region: comparing


def measure(
    work: Work,
    windows: Sequence[int],
    policies: Iterable[str],
    made: Callable[[str], RetentionPolicy],
    tick: Callable[[], None] = lambda: None,
) -> dict[str, object]:
    """Serve the traffic with the full group alone, then under each policy with each window."""
    full = GroupSpec("full", Full(), 1, (0,))
    alone = serve(work, (full,), Tail(), tick)
    traffic = work.traffic
    rows = []
    for window in windows:
        groups = (full, GroupSpec("swa", Window(window - 1), 1, (1,)))
        for name in policies:
            policy = Asking(name, made(name))
            outcome = serve(work, groups, policy, tick)
            rows.append(
                {
                    "window": window,
                    "policy": name,
                    **_shares(outcome.hits, alone.hits),
                    "hit_tokens": outcome.hits,
                    "windows_asked": policy.asked,
                    "windows_held": outcome.held,
                }
            )
    return {
        "requests": {kind: sum(request.kind == kind for request in traffic.requests) for kind in KINDS},
        "prompt_tokens": {kind: traffic.prompts(kind) for kind in KINDS},
        "tokens": traffic.tokens,
        "page": work.page,
        "chunk": work.chunk,
        "share": work.share,
        "pages": {"full": work.full_pages, "swa": work.window_pages},
        "full_alone": {"hit_tokens": alone.hits},
        "rows": rows,
    }


def _shares(hits: dict[str, int], alone: dict[str, int]) -> dict[str, float]:
    shares = {kind: hits[kind] / alone[kind] if alone[kind] else 1.0 for kind in (KNOWN, FRESH, TURN)}
    return {"all": sum(hits.values()) / max(1, sum(alone.values())), **shares}


def _show(result: dict[str, object], seed: int) -> None:
    console = Console()
    pages, rows, requests, alone = (result[key] for key in ("pages", "rows", "requests", "full_alone"))
    prompts = result["prompt_tokens"]
    assert isinstance(pages, dict) and isinstance(rows, list) and isinstance(requests, dict)
    assert isinstance(alone, dict) and isinstance(prompts, dict)
    hits = sum(alone["hit_tokens"].values())
    console.print(
        f"{sum(requests.values()):,} requests, {requests[KNOWN]:,} branches at known points and {requests[FRESH]:,} at "
        f"fresh ones, seed {seed}. Full attention alone, with {pages['full']:,} pages of {result['page']} tokens: "
        f"{hits:,} hit tokens of {sum(prompts.values()):,}."
    )
    for window in dict.fromkeys(row["window"] for row in rows):
        table = Table(title=f"Window {window}, {pages['swa']:,} pages ({result['share']:.1%}): hit tokens kept")
        table.add_column("policy", no_wrap=True)
        for heading in ("known", "fresh", "turns", "all", "windows asked", "held"):
            table.add_column(heading, justify="right", no_wrap=True)
        for row in rows:
            if row["window"] == window:
                shares = (f"{row[kind]:.1%}" for kind in (KNOWN, FRESH, TURN, "all"))
                table.add_row(row["policy"], *shares, f"{row['windows_asked']:,}", f"{row['windows_held']:,}")
        console.print(table)


@click.command("branches")
@click.option("--sessions", default=400, show_default=True, type=click.IntRange(1, REQUESTS))
@click.option(
    "--turns", default=3, show_default=True, type=click.IntRange(1, REQUESTS), help="Of a session, on average."
)
@click.option("--seed", default=0, show_default=True)
@click.option("--page", default=16, show_default=True, type=click.IntRange(1, MOST), help="Tokens of a page.")
@click.option(
    "--chunk", default=16_384, show_default=True, type=click.IntRange(1, MOST), help="Tokens computed at once."
)
@click.option(
    "--window",
    "windows",
    multiple=True,
    type=click.IntRange(2, MOST),
    help="Tokens that a window layer sees; may be repeated.  [default: 128, 1024]",
)
@click.option(
    "--share",
    default=0.015,
    show_default=True,
    type=Number(0, 1, min_open=True),
    help="Pages of the window pool, as a share of the full pool's.",
)
@click.option(
    "--policy", "policies", multiple=True, metavar="NAME", help="As in `[retain] use`; may be repeated.  [default: all]"
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of tables.")
@set_option
def command(
    sessions: int,
    turns: int,
    seed: int,
    page: int,
    chunk: int,
    windows: tuple[int, ...],
    share: float,
    policies: tuple[str, ...],
    as_json: bool,
    sets: tuple[str, ...],
) -> None:
    """Hits that retention policies keep where sessions grow and branch, next to full attention alone."""
    if sessions * turns > REQUESTS:
        raise ConfigError(
            f"--sessions {sessions} of --turns {turns} are more than {REQUESTS} requests: memory would not hold them"
        )
    windows = windows or (128, 1024)
    names, made = _offered(policies, sets)
    work = Work(Traffic.of(sessions, turns, seed), page, chunk, share)
    if work.window_pages < (needed := work.needed(max(windows))):
        raise ConfigError(
            f"--share {share:g} of {work.full_pages} pages is {work.window_pages}, and a chunk with its window takes "
            f"{needed}: give a larger --share, more --sessions or a smaller --chunk"
        )
    if work.full_pages < work.longest:
        raise ConfigError(
            f"a request takes {work.longest} pages, and two thirds of all are {work.full_pages}: give more --sessions"
        )
    with Progress(console=Console(stderr=True), transient=True, disable=as_json) as progress:
        task = progress.add_task("requests", total=len(work.traffic.requests) * (1 + len(windows) * len(names)))
        result = measure(work, windows, names, made, lambda: progress.advance(task))
    if as_json:
        click.echo(json.dumps({"sessions": sessions, "turns": turns, "seed": seed, **result}, indent=2))
    else:
        _show(result, seed)


def _offered(policies: Sequence[str], sets: Sequence[str]) -> tuple[Sequence[str], Callable[[str], RetentionPolicy]]:
    """The policies asked for, else all that are installed, and how each is made."""
    registry = read_config(None).load_plugins()
    names = list(dict.fromkeys(policies)) or [
        name for name in registry.offers("retain") if registry.why_not("retain", name) is None
    ]

    def made(name: str) -> RetentionPolicy:
        config = read_config(None, sets, {"retain.use": name})
        choice = config.choose("retain", "retain", registry, name)
        return make(choice, RetentionPolicy, Place(name, "cpu", lambda: config.cache_dir))  # type: ignore[type-abstract]

    for name in names:
        made(name)
    return names, made


# endregion
