"""The kit of dispatchers. Provisional, as its contract is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, ClassVar

import numpy as np
import pytest

from stepwell import Dispatcher
from stepwell_testkit.kit import Kit
from stepwell_testkit.world import Adapter, Array, NumpyAdapter, Threads, World

DISPATCH_START, DISPATCH_FINISH, COMBINE_START, COMBINE_FINISH = range(4)
ONE = (0, 0, 0, 0)
INTERLEAVINGS = tuple(tuple(int(at in second) for at in range(8)) for second in combinations(range(8), 4))
"""Every order in which two batches, 0 and 1, can go through their four steps."""


class DispatchKit(Kit):
    """Tests a `Dispatcher`: give the fixture `dispatchers`, one a rank, made for the sizes below.

    Ranks are threads of one process. A backend that needs a process a rank gives the fixture `world` instead. Experts
    are spread evenly: rank r owns the r-th share of them. Expert e multiplies a token by e + 1.
    """

    required: ClassVar[tuple[str, ...]] = ("dispatchers",)
    experts: ClassVar[int] = 8
    top_k: ClassVar[int] = 2
    hidden: ClassVar[int] = 32
    max_tokens: ClassVar[int] = 24
    """Most tokens a rank may dispatch at once; the kit dispatches exactly as many, too."""
    tolerance: ClassVar[float] = 1e-5
    """Relative error of a sum, for what precision the backend moves."""
    adapter: ClassVar[Adapter] = NumpyAdapter()
    limit_s: ClassVar[float] = 30.0
    """Seconds after which a rank counts as hung."""

    @classmethod
    def kit_fixtures(cls) -> tuple[str, ...]:
        return () if cls.world is not DispatchKit.world else cls.required

    @pytest.fixture
    def world(self, dispatchers: Sequence[Dispatcher[Any]]) -> World:
        """The ranks; a thread each unless the author has another way."""
        return Threads(dispatchers, self.limit_s)

    def test_they_are_dispatchers(self, world: World) -> None:
        assert all(world.run(_is_dispatcher))
        assert self.experts % world.ranks == 0, f"{self.experts} experts do not spread over {world.ranks} ranks"

    @pytest.mark.parametrize("seed", range(4))
    def test_sums_equal_a_plain_loop(self, world: World, seed: int) -> None:
        self._exchange(world, [self._random(seed, [self.max_tokens // (rank + 1) for rank in range(world.ranks)])])

    def test_tokens_arrive_sorted_by_local_expert(self, world: World) -> None:
        batch = self._random(9, [self.max_tokens] * world.ranks)
        own = self.experts // world.ranks
        tokens, experts = np.concatenate(batch.tokens), np.concatenate(batch.experts)
        for rank, (arrived, counts) in enumerate(world.run(_Arrivals(batch, self.adapter))):
            assert arrived.shape == (counts.sum(), self.hidden)
            assert counts.shape == (own,)
            start = 0
            for local, count in enumerate(counts.tolist()):
                sent = tokens[(experts == rank * own + local).any(axis=1)]
                got = arrived[start : start + count]
                start += count
                assert len(got) == len(sent), f"expert {rank * own + local} got {len(got)} of {len(sent)} tokens"
                assert _close(_sorted(got), _sorted(sent), self.tolerance), f"expert {rank * own + local}: other tokens"

    def test_b114_ranks_without_tokens_take_part(self, world: World) -> None:
        for sizes in ([5, 0, 3, 0], [0, 4, 0, 0], [0, 0, 0, 0]):
            self._exchange(world, [self._random(1, [sizes[rank % 4] for rank in range(world.ranks)])])

    def test_b113_a_full_batch_and_one_token_less(self, world: World) -> None:
        for size in (self.max_tokens, self.max_tokens - 1, 1):
            self._exchange(world, [self._random(2, [size] * world.ranks)])

    def test_b119_all_tokens_go_to_one_expert(self, world: World) -> None:
        for expert in (0, self.experts - 1):
            batch = self._random(3, [self.max_tokens] * world.ranks)
            for experts in batch.experts:
                experts[:] = -1
                experts[:, 0] = expert
            self._exchange(world, [batch])

    def test_b119_all_tokens_go_to_one_rank(self, world: World) -> None:
        own = self.experts // world.ranks
        batch = self._random(4, [self.max_tokens] * world.ranks)
        for experts in batch.experts:
            experts %= own
            experts[experts[:, 0] == experts[:, 1], 1:] = -1
        self._exchange(world, [batch])

    def test_b119_one_expert_a_token_in_turn(self, world: World) -> None:
        batch = self._random(5, [self.max_tokens] * world.ranks)
        for experts in batch.experts:
            experts[:] = -1
            experts[:, -1] = np.arange(len(experts)) % self.experts
        self._exchange(world, [batch])

    def test_an_expert_of_minus_one_is_nowhere(self, world: World) -> None:
        batch = self._random(6, [self.max_tokens] * world.ranks)
        for experts in batch.experts:
            experts[::2, 0] = -1
            experts[::3] = -1
        self._exchange(world, [batch])
        for experts in batch.experts:
            experts[:] = -1
        self._exchange(world, [batch])

    def test_rounds_follow_each_other(self, world: World) -> None:
        for seed in range(12):  # each size twice, so that what a buffer kept from the round before would fit
            self._exchange(world, [self._random(seed, [(seed // 2 * 5 + rank) % 9 for rank in range(world.ranks)])])

    def test_b118_two_batches_in_flight_keep_apart(self, world: World) -> None:
        """Every order of the two halves of two-batch overlap."""
        pair = [self._random(7, [6] * world.ranks), self._random(8, [3] * world.ranks)]
        for steps in INTERLEAVINGS:
            self._exchange(world, pair, steps)

    def test_close_is_the_last_call(self, world: World) -> None:
        self._exchange(world, [self._random(0, [4] * world.ranks)])
        world.run(_close_rank)

    # --- helpers -------------------------------------------------------------------------------------------------

    def _random(self, seed: int, sizes: Sequence[int]) -> Batch:
        dice = np.random.default_rng(seed)
        chosen = [np.argsort(dice.random((size, self.experts)), axis=1)[:, : self.top_k] for size in sizes]
        return Batch(
            tokens=[dice.standard_normal((size, self.hidden)).astype(np.float32) for size in sizes],
            experts=[each.astype(np.int64) for each in chosen],
            weights=[dice.uniform(-1, 1, (size, self.top_k)).astype(np.float32) for size in sizes],
        )

    def _exchange(self, world: World, batches: list[Batch], steps: Sequence[int] = ONE) -> None:
        own = self.experts // world.ranks
        answers = world.run(_Exchange(batches, steps, own, self.adapter))
        for rank, sums in enumerate(answers):
            for which, batch in enumerate(batches):
                right = batch.reference(rank)
                assert sums[which].shape == right.shape, f"rank {rank} got {sums[which].shape} for {right.shape}"
                assert _close(sums[which], right, self.tolerance), (
                    f"rank {rank}, batch {which}, steps {steps}: off by up to {np.abs(sums[which] - right).max():.3g}"
                )


@dataclass(frozen=True)
class Batch:
    """What each rank brings."""

    tokens: list[Array]
    experts: list[Array]
    weights: list[Array]

    def reference(self, rank: int) -> Array:
        """The sums of a rank by a plain formula."""
        experts = self.experts[rank]
        share = np.where(experts >= 0, self.weights[rank] * (experts + 1), 0.0).sum(axis=1, keepdims=True)
        sums: Array = (self.tokens[rank] * share).astype(np.float32)
        return sums


@dataclass(frozen=True)
class _Exchange:
    """One rank's part: take each batch through its four steps, in the order that `steps` gives."""

    batches: list[Batch]
    steps: Sequence[int]
    own: int
    adapter: Adapter

    def __call__(self, dispatcher: Dispatcher[Any], rank: int) -> list[Array]:
        done = [0] * len(self.batches)
        held: list[Any] = [None] * len(self.batches)
        for which in self.steps:
            held[which] = self._step(dispatcher, rank, done[which], self.batches[which], held[which])
            done[which] += 1
        return [self.adapter.take(sums) for sums in held]

    def _step(self, dispatcher: Dispatcher[Any], rank: int, step: int, batch: Batch, held: Any) -> Any:
        give = self.adapter.give
        if step == DISPATCH_START:
            return dispatcher.dispatch_start(give(batch.tokens[rank]), give(batch.experts[rank]))
        if step == DISPATCH_FINISH:
            return dispatcher.dispatch_finish(held)
        if step == COMBINE_START:
            counts = self.adapter.take(held.counts)
            scale = np.repeat(rank * self.own + np.arange(self.own) + 1, counts).astype(np.float32)
            outputs = self.adapter.take(held.tokens) * scale[:, None]
            return dispatcher.combine_start(give(outputs.astype(np.float32)), held, give(batch.weights[rank]))
        return dispatcher.combine_finish(held)


@dataclass(frozen=True)
class _Arrivals:
    """One rank's part: what a dispatch brings, sent back unchanged."""

    batch: Batch
    adapter: Adapter

    def __call__(self, dispatcher: Dispatcher[Any], rank: int) -> tuple[Array, Array]:
        give, take = self.adapter.give, self.adapter.take
        handle = dispatcher.dispatch_start(give(self.batch.tokens[rank]), give(self.batch.experts[rank]))
        dispatched = dispatcher.dispatch_finish(handle)
        arrived, counts = take(dispatched.tokens), take(dispatched.counts)
        outputs = give(arrived)
        dispatcher.combine_finish(dispatcher.combine_start(outputs, dispatched, give(self.batch.weights[rank])))
        return arrived, counts


def _is_dispatcher(dispatcher: Dispatcher[Any], rank: int) -> bool:
    return isinstance(dispatcher, Dispatcher)


def _close_rank(dispatcher: Dispatcher[Any], rank: int) -> None:
    dispatcher.close()


def _close(got: Array, right: Array, tolerance: float) -> bool:
    scale = max(1.0, float(np.abs(right).max(initial=0.0)))
    return bool(np.abs(got.astype(np.float64) - right).max(initial=0.0) <= tolerance * scale)


def _sorted(rows: Array) -> Array:
    return rows[np.lexsort(rows.T[::-1])]
