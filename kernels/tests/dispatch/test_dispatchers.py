"""The dispatchers of the kernels under the kit; ranks are threads, which exchange tensors without sockets."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from stepwell import ConfigError, Dispatcher, Exchange, PeerLost, Traffic
from stepwell_kernels.collective import thread_groups
from stepwell_kernels.collective.group import Group, Solo
from stepwell_kernels.dispatch.auto import Auto
from stepwell_kernels.dispatch.collective import Collective
from stepwell_kernels.dispatch.low_latency import LowLatency
from stepwell_kernels.dispatch.slowed import Slowed
from stepwell_testkit import DispatchKit, TorchAdapter
from stepwell_testkit.dispatch.lost import Lost

TIMEOUT_S = 60.0


def groups(ranks: int) -> Sequence[Group]:
    return [Solo()] if ranks == 1 else thread_groups(ranks, TIMEOUT_S)


def normal(group: Group) -> Collective:
    return Collective("collective", lambda: group, TIMEOUT_S)


def low_latency(group: Group, capacity: int = 24) -> LowLatency:
    return LowLatency("collective-low-latency", lambda: group, capacity)


class Again(DispatchKit):
    """Lost ranks have tests of their own, with a short time limit that a busy machine may break otherwise."""

    __test__ = False
    adapter = TorchAdapter()
    notices_lost = False


class Plain(Again):
    """On one, two and four ranks, in float32."""

    __test__ = False

    @pytest.fixture(params=[1, 2, 4])
    def size(self, request: pytest.FixtureRequest) -> int:
        return int(request.param)


class TestLost(Lost):
    """Of the low latency; test_over_gloo.py has the normal one."""

    adapter = TorchAdapter()
    lost_s = 8.0

    @pytest.fixture
    def dispatchers(self) -> list[Dispatcher[torch.Tensor]]:
        return [low_latency(group) for group in thread_groups(2, 2.0)]


class TestCollective(Plain):
    __test__ = True

    @pytest.fixture
    def dispatchers(self, size: int) -> list[Dispatcher[torch.Tensor]]:
        return [normal(group) for group in groups(size)]


class TestLowLatency(Plain):
    __test__ = True

    @pytest.fixture
    def dispatchers(self, size: int) -> list[Dispatcher[torch.Tensor]]:
        return [low_latency(group) for group in groups(size)]


class TestCollectiveBfloat16(Again):
    __test__ = True
    dtype, tolerance, hidden = "bfloat16", 0.02, 40

    @pytest.fixture
    def dispatchers(self) -> list[Dispatcher[torch.Tensor]]:
        return [normal(group) for group in groups(2)]


class TestLowLatencyBfloat16(Again):
    __test__ = True
    dtype, tolerance, top_k = "bfloat16", 0.02, 3

    @pytest.fixture
    def dispatchers(self) -> list[Dispatcher[torch.Tensor]]:
        return [low_latency(group) for group in groups(2)]


class TestAuto(Again):
    __test__ = True

    @pytest.fixture
    def dispatchers(self) -> list[Dispatcher[torch.Tensor]]:
        return [Auto(normal(one), low_latency(other, 6)) for one, other in zip(groups(2), groups(2), strict=True)]


class TestSlowed(Again):
    __test__ = True

    @pytest.fixture
    def dispatchers(self) -> list[Dispatcher[torch.Tensor]]:
        return [Slowed(normal(group), group.rank, 2, 1.0, 10.0) for group in groups(2)]


def test_b113_what_is_too_large_for_low_latency_goes_by_the_other() -> None:
    one, other = normal(Solo()), low_latency(Solo(), 16)
    auto = Auto(one, other)
    auto.open(Traffic(experts=8, top_k=2, hidden=32, dtype="float32", max_tokens=64))
    picked = {tokens: auto.pick(Exchange(tokens, prefill=False)) for tokens in (0, 1, 16, 17, 64)}
    assert picked == {0: other, 1: other, 16: other, 17: one, 64: one}
    assert auto.pick(Exchange(1, prefill=True)) is one
    assert (auto.capacity, other.capacity) == (None, 16)


def test_a_slowed_direction_takes_its_time() -> None:
    """A rank sends 20 tokens of 4,000 bytes to the other: 8 ms at 10 MB/s, and as much back; two batches queue."""

    def rank(group: Group) -> list[float]:
        dispatcher = Slowed(normal(group), group.rank, 2, 0.01, 1000.0)
        dispatcher.open(Traffic(experts=4, top_k=2, hidden=1000, dtype="float32", max_tokens=64))
        there = torch.full((20, 1), 2 - 2 * group.rank)
        batch = torch.ones(20, 1000), torch.cat([there, there + 1], 1), torch.ones(20, 2)
        times = [time.perf_counter()]
        handles = [dispatcher.dispatch_start(*batch) for _ in range(2)]
        got = []
        for handle in handles:
            got.append(dispatcher.dispatch_finish(handle))
            times.append(time.perf_counter())
        dispatcher.combine_finish(dispatcher.combine_start(got[0].tokens.contiguous(), got[0]))
        times.append(time.perf_counter())
        return [after - before for before, after in itertools.pairwise(times)]

    with ThreadPoolExecutor(2) as pool:
        for first, second, back in pool.map(rank, thread_groups(2)):
            assert first >= 0.009 and first + second >= 0.017 and back >= 0.009


def test_experts_have_to_spread_evenly() -> None:
    dispatcher = normal(thread_groups(3)[0])
    with pytest.raises(ConfigError, match="8 experts do not spread over 3 ranks"):
        dispatcher.open(Traffic(experts=8, top_k=2, hidden=32, dtype="float32", max_tokens=64))


def test_what_could_not_be_opened_is_closed() -> None:
    def nobody() -> Group:
        raise RuntimeError("nobody came")

    for dispatcher in (Collective("collective", nobody, 1.0), LowLatency("low", nobody, 8)):
        with pytest.raises(PeerLost, match="nobody came"):
            dispatcher.open(Traffic(experts=8, top_k=2, hidden=32, dtype="float32", max_tokens=64))
        dispatcher.close()
        dispatcher.close()


def test_what_moves_is_named() -> None:
    with pytest.raises(ConfigError, match="collective moves bfloat16 or float32, not float16"):
        normal(Solo()).open(Traffic(experts=8, top_k=2, hidden=32, dtype="float16", max_tokens=64))
