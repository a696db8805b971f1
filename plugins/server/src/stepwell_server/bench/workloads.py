"""Which requests come one after another: nothing shared, groups that share a prefix, sessions, or a recorded trace.

`asks` gives the requests of one client. It is sent each answer, None where there was none. `salt` differs from level to
level, so that no level finds in the cache what another has left there.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Protocol

from stepwell.errors import ConfigError
from stepwell.replay import trace
from stepwell_server.bench.asks import Answer, Ask, Span

Asks = Generator[Ask, Answer | None, None]


@dataclass(frozen=True, slots=True)
class Lengths:
    """Numbers of tokens, evenly drawn from `least` to `most`."""

    least: int
    most: int

    def draw(self, dice: random.Random) -> int:
        """One of them."""
        return dice.randint(self.least, self.most)

    def __str__(self) -> str:
        return str(self.least) if self.least == self.most else f"{self.least}-{self.most}"


class Workload(Protocol):
    """Requests to make."""

    @property
    def longest(self) -> int | None:
        """Most tokens that prompt and answer of one request have, where that is known beforehand."""

    def asks(self, salt: str, client: int) -> Asks:
        """The requests of one client."""

    def __str__(self) -> str:
        """In a line, for reports."""


@dataclass(frozen=True)
class Unshared:
    """`random`: no two prompts have anything in common."""

    input: Lengths
    output: Lengths

    @property
    def longest(self) -> int | None:
        return self.input.most + self.output.most

    def asks(self, salt: str, client: int) -> Asks:
        dice = random.Random(f"{salt}/{client}")
        for number in count():
            yield Ask((Span(f"{salt}/{client}/{number}", self.input.draw(dice)),), self.output.draw(dice))

    def __str__(self) -> str:
        return f"random prompts of {self.input} tokens, answers of {self.output}"


@dataclass(frozen=True)
class Shared:
    """`shared`: each prompt begins with one of a few prefixes."""

    groups: int
    prefix: int
    input: Lengths
    output: Lengths

    @property
    def longest(self) -> int | None:
        return self.prefix + self.input.most + self.output.most

    def asks(self, salt: str, client: int) -> Asks:
        dice = random.Random(f"{salt}/{client}")
        for number in count():
            prefix = Span(f"{salt}/group/{dice.randrange(self.groups)}", self.prefix)
            own = Span(f"{salt}/{client}/{number}", self.input.draw(dice))
            yield Ask((prefix, own), self.output.draw(dice))

    def __str__(self) -> str:
        return (
            f"prompts of one of {self.groups} prefixes of {self.prefix} tokens and {self.input} of their own, "
            f"answers of {self.output}"
        )


@dataclass(frozen=True)
class Sessions:
    """`sessions`: each client goes on with its own history, and begins anew after so many turns."""

    turns: int
    input: Lengths
    output: Lengths

    @property
    def longest(self) -> int | None:
        return self.turns * (self.input.most + self.output.most)

    def asks(self, salt: str, client: int) -> Asks:
        dice = random.Random(f"{salt}/{client}")
        for session in count():
            said: tuple[Span | Answer, ...] = ()
            for turn in range(self.turns):
                said += (Span(f"{salt}/{client}/{session}/{turn}", self.input.draw(dice)),)
                answer = yield Ask(said, self.output.draw(dice))
                if answer is None:
                    break
                said += (answer,)

    def __str__(self) -> str:
        return f"sessions of {self.turns} turns, {self.input} tokens a turn, answers of {self.output}"


@dataclass(frozen=True)
class Trace:
    """`trace`: recorded requests, whose clients take the next one that nobody has taken."""

    name: str
    arrivals: tuple[trace.Arrival, ...]
    _taken: dict[str, Iterator[trace.Arrival]] = field(default_factory=dict, compare=False)

    @classmethod
    def read(cls, path: Path, block: int, limit: int | None) -> Trace:
        """A file of requests with `hash_ids`. ConfigError: it is none."""
        arrivals = trace.load(path, block=block, limit=limit)
        if arrivals[0].block != block:
            raise ConfigError(f"{path}: its requests have no hash_ids, from which prompts could be made")
        return cls(path.name, tuple(arrivals))

    @property
    def longest(self) -> int | None:
        return None  # what is too long for the model is refused, and counted

    def asks(self, salt: str, client: int) -> Asks:
        for arrival in self._taken.setdefault(salt, iter(self.arrivals)):
            yield self.ask(salt, arrival)

    def ask(self, salt: str, arrival: trace.Arrival) -> Ask:
        """A request of the trace: each block is a span, so equal blocks are equal tokens."""
        ids = arrival.ids.tolist()
        ends = [arrival.block_tokens(at) for at in range(len(ids) + 1)]
        spans = (Span(f"{salt}/block/{ids[at]}", ends[at + 1] - ends[at]) for at in range(len(ids)))
        return Ask(tuple(spans), arrival.output_length)

    def __str__(self) -> str:
        return f"{len(self.arrivals)} requests of {self.name}"
