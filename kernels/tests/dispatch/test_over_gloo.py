"""The offers as a runner has them: ranks are processes, which meet by a file and talk over gloo."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
import torch

from stepwell import Capability, Context, Dispatcher, Offer, Part
from stepwell_kernels.dispatch.config import AutoConfig, CollectiveConfig, LowLatencyConfig
from stepwell_kernels.plugin import stepwell_dispatchers
from stepwell_testkit import DispatchKit, TorchAdapter
from stepwell_testkit.pool import Processes

OFFERS: dict[str, Offer[Dispatcher[torch.Tensor]]] = {offer.name: offer for offer in stepwell_dispatchers()}
NORMAL = Part(OFFERS["collective"], CollectiveConfig(timeout_s=3.0))
LOW_LATENCY = Part(OFFERS["collective-low-latency"], LowLatencyConfig(capacity=10, timeout_s=3.0))
AUTO = Part(OFFERS["auto"], AutoConfig(NORMAL, LOW_LATENCY))


def make(part: Part[Dispatcher[torch.Tensor]], context: Context) -> Dispatcher[torch.Tensor]:
    torch.set_num_threads(1)
    return part.make(context)


def processes(part: Part[Dispatcher[torch.Tensor]], ranks: int, factory: pytest.TempPathFactory) -> Iterator[Processes]:
    with Processes(partial(make, part), ranks, factory.mktemp("meet")) as found:
        yield found


@pytest.fixture(scope="module")
def normal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    yield from processes(NORMAL, 3, tmp_path_factory)


@pytest.fixture(scope="module")
def auto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    yield from processes(AUTO, 2, tmp_path_factory)


class OverGloo(DispatchKit):
    __test__ = False
    adapter = TorchAdapter()
    lost_s = 10.0


class TestCollective(OverGloo):
    __test__ = True
    experts = 9

    @pytest.fixture
    def world(self, normal: Processes) -> Processes:
        return normal.renewed()


class TestAuto(OverGloo):
    """Both modes of it meet at one place; the low latency is what decodes get."""

    __test__ = True

    @pytest.fixture
    def world(self, auto: Processes) -> Processes:
        return auto.renewed()


def test_only_what_reads_no_size_can_be_captured() -> None:
    assert LOW_LATENCY.provides == {Capability.GRAPH_SAFE}
    assert NORMAL.provides == AUTO.provides == frozenset()
