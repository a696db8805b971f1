"""What all parts of the dispatch kit share: what an author says of the backend, and how a test gets at its ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import numpy as np
import pytest

from stepwell import Dispatcher, Format, Traffic
from stepwell_testkit.dispatch.batch import Batch, drawn, off
from stepwell_testkit.dispatch.passage import STEPS, Scene, through
from stepwell_testkit.kit import Kit
from stepwell_testkit.world import Adapter, Array, Mortal, NumpyAdapter, Threads, World

R = TypeVar("R")
ALONE = (0,) * STEPS
"""The order of a batch that has the dispatchers to itself."""


class DispatchBase(Kit):
    """Settings, fixtures and helpers of the dispatch kit."""

    required: ClassVar[tuple[str, ...]] = ("dispatchers",)
    experts: ClassVar[int] = 8
    """Over all ranks; a multiple of their number."""
    top_k: ClassVar[int] = 2
    hidden: ClassVar[int] = 32
    """A multiple of 128 where tokens are sent with scales."""
    dtype: ClassVar[str] = "float32"
    max_tokens: ClassVar[int] = 24
    tolerance: ClassVar[float] = 1e-5
    """Error of tokens that arrive and of sums, relative to the largest, for what precision the backend moves: about
    0.02 for bfloat16, 0.08 for 8-bit floats."""
    adapter: ClassVar[Adapter] = NumpyAdapter()
    limit_s: ClassVar[float] = 30.0
    """Seconds after which a rank counts as hung."""
    orders: ClassVar[int] = 70
    """How many orders of batches in flight are tried; two batches have 70. Fewer for what takes long, such as kernels
    in an interpreter."""
    notices_lost: ClassVar[bool] = True
    """False where only the device notices that a rank is gone, and cannot say so and go on."""
    lost_s: ClassVar[float] = 10.0
    """Seconds within which a rank that is gone has to be noticed; make dispatchers with a shorter limit than this."""

    @classmethod
    def kit_fixtures(cls) -> tuple[str, ...]:
        return () if cls.world is not DispatchBase.world else cls.required

    @classmethod
    def traffic(cls) -> Traffic:
        """What the dispatchers are opened for."""
        return Traffic(cls.experts, cls.top_k, cls.hidden, cls.dtype, cls.max_tokens)

    @pytest.fixture
    def world(self, dispatchers: Sequence[Dispatcher[Any]]) -> World:
        """The ranks; a thread each unless the author has another way."""
        return Threads(dispatchers, self.limit_s)

    @pytest.fixture
    def unopened(self, world: World) -> Iterator[Ranks]:
        """The ranks as the author gave them; closed afterwards, where none of them hangs."""
        ranks = Ranks(world, self.traffic(), self.adapter)
        yield ranks
        if ranks.whole:
            ranks.run(closed)

    @pytest.fixture
    def ranks(self, unopened: Ranks) -> Ranks:
        """The ranks, their dispatchers open."""
        unopened.facts = unopened.run(Open(self.traffic()))
        return unopened

    # --- helpers -------------------------------------------------------------------------------------------------

    def batch(self, seed: int, sizes: Sequence[int]) -> Batch:
        """Random tokens, so many on each rank."""
        return drawn(self.traffic(), seed, sizes)

    def check(self, ranks: Ranks, *batches: Batch) -> None:
        """One batch after the other; the sums of all have to be right when the last is through."""
        orders = [tuple(np.repeat(np.arange(len(batches)), STEPS).tolist())]
        self.judge(batches, ranks.run(Through(ranks.scene, batches, orders)), orders)

    def judge(self, batches: Sequence[Batch], answers: Sequence[list[list[Array]]], orders: Sequence[object]) -> None:
        """Hold the answers of all ranks, for each order and batch, against a plain formula."""
        for rank, answer in enumerate(answers):
            for order, sums in zip(orders, answer, strict=True):
                for which, (batch, got) in enumerate(zip(batches, sums, strict=True)):
                    self._judge(batch, got, rank, f"rank {rank}, batch {which}, steps {order}")

    def _judge(self, batch: Batch, got: Array, rank: int, what: str) -> None:
        right = batch.sums(rank)
        assert got.shape == right.shape, f"{what}: got {got.shape} for {right.shape}"
        assert off(got, right) <= self.tolerance, f"{what}: off by {off(got, right):.3g} of the largest"
        nowhere = (batch.experts[rank] < 0).all(axis=1)
        assert not got[nowhere].any(), f"{what}: a token without experts has a sum"


@dataclass(frozen=True)
class Facts:
    """What an open dispatcher says of itself."""

    right_type: bool
    format: Format
    in_flight: int
    capacity: int | None


class Ranks:
    """The world of a test, and what it knows of it."""

    def __init__(self, world: World, traffic: Traffic, adapter: Adapter) -> None:
        self._world = world
        self.count = world.ranks
        self.scene = Scene(traffic, world.ranks, adapter)
        self.whole = True
        """Whether every rank came back so far."""
        self.facts: Sequence[Facts] = ()
        """Of each rank, once open."""

    def run(self, work: Callable[[Dispatcher[Any], int], R]) -> Sequence[R]:
        """Do the same on all of them."""
        try:
            return self._world.run(work)
        except BaseException:
            self.whole = False
            raise

    def kill(self, rank: int) -> None:
        """End a rank without any warning; skips the test where the world has no way to."""
        if not isinstance(self._world, Mortal):
            pytest.skip("its ranks cannot be killed")
        self._world.kill(rank)

    @property
    def in_flight(self) -> int:
        """Batches that may be under way at once."""
        return self.facts[0].in_flight

    @property
    def most(self) -> int:
        """Tokens of a full batch of a rank."""
        return min(self.limit, self.scene.traffic.max_tokens)

    @property
    def limit(self) -> int:
        """Tokens of a rank beyond which a dispatch has to be refused."""
        return self.facts[0].capacity or self.scene.traffic.max_tokens


@dataclass(frozen=True)
class Open:
    """Open a rank's dispatcher."""

    traffic: Traffic

    def __call__(self, dispatcher: Dispatcher[Any], rank: int) -> Facts:
        dispatcher.open(self.traffic)
        known = isinstance(dispatcher, Dispatcher)
        return Facts(known, dispatcher.format, dispatcher.in_flight, dispatcher.capacity)


@dataclass(frozen=True)
class Through:
    """One rank's part: take batches through their steps in each of several orders; the sums as they are at the end."""

    scene: Scene
    batches: Sequence[Batch]
    orders: Sequence[Sequence[int]]

    def __call__(self, dispatcher: Dispatcher[Any], rank: int) -> list[list[Array]]:
        done = [through(self.scene, dispatcher, rank, self.batches, order) for order in self.orders]
        return [[passage.sums() for passage in passages] for passages in done]


def closed(dispatcher: Dispatcher[Any], rank: int) -> None:
    """Close a rank's dispatcher."""
    dispatcher.close()
