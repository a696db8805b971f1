"""The kit, on the library: two ranks on two devices of one machine."""

from dataclasses import replace
from pathlib import Path

import pytest

from stepwell import Capability
from stepwell_deepep import stepwell_dispatchers
from stepwell_deepep.config import ElasticConfig, LowLatencyConfig, NormalConfig
from stepwell_testkit import DispatchKit, TorchAdapter
from stepwell_testkit.pool import Processes

RANKS = 2
OFFERS = {offer.name: offer for offer in stepwell_dispatchers()}
few = len(list(Path("/dev").glob("nvidia[0-9]*"))) < RANKS


def ranks(name, config, factory):
    offer = OFFERS[name]

    def make(context):
        import torch

        torch.cuda.set_device(context.rank)
        return offer.make(config, replace(context, device=f"cuda:{context.rank}"))

    if few or offer.missing() is not None:
        pytest.skip(offer.missing() or "needs two GPUs")
    with Processes(make, RANKS, factory.mktemp("meet"), limit_s=120) as processes:
        yield processes


@pytest.fixture(scope="module")
def normal(tmp_path_factory):
    yield from ranks("deepep", NormalConfig(), tmp_path_factory)


@pytest.fixture(scope="module")
def elastic(tmp_path_factory):
    yield from ranks("deepep-v2", ElasticConfig(), tmp_path_factory)


@pytest.fixture(scope="module")
def low_latency(tmp_path_factory):
    yield from ranks("deepep-low-latency", LowLatencyConfig(), tmp_path_factory)


class OnDevices(DispatchKit):
    __test__ = False
    notices_lost = False  # its kernels stop after 100 s, and with them the process
    dtype, tolerance, adapter, hidden = "bfloat16", 0.02, TorchAdapter("cuda"), 2048


@pytest.mark.gpu
class TestNormal(OnDevices):
    __test__ = True

    @pytest.fixture
    def world(self, normal):
        return normal.renewed()


@pytest.mark.gpu
class TestExactSizes(OnDevices):
    __test__ = True

    @pytest.fixture
    def world(self, elastic):
        return elastic.renewed()


@pytest.mark.gpu
class TestLowLatency(OnDevices):
    __test__ = True
    provides = frozenset({Capability.GRAPH_SAFE})

    @pytest.fixture
    def world(self, low_latency):
        return low_latency.renewed()
