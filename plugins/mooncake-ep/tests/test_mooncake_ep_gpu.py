"""The kit, on the library: two ranks on two devices of one machine."""

from dataclasses import replace
from pathlib import Path

import pytest

from stepwell import Capability
from stepwell_mooncake_ep import stepwell_dispatchers
from stepwell_mooncake_ep.config import MooncakeEPConfig
from stepwell_testkit import DispatchKit, TorchAdapter
from stepwell_testkit.pool import Processes

RANKS = 2
(OFFER,) = stepwell_dispatchers()
few = len(list(Path("/dev").glob("nvidia[0-9]*"))) < RANKS


def ranks(config, factory):
    def make(context):
        import torch

        torch.cuda.set_device(context.rank)
        return OFFER.make(config, replace(context, device=f"cuda:{context.rank}"))

    if few or OFFER.missing() is not None:
        pytest.skip(OFFER.missing() or "needs two GPUs")
    with Processes(make, RANKS, factory.mktemp("meet"), limit_s=120) as processes:
        yield processes


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    yield from ranks(MooncakeEPConfig(), tmp_path_factory)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    yield from ranks(MooncakeEPConfig(tokens="float8"), tmp_path_factory)


class OnDevices(DispatchKit):
    __test__ = False
    notices_lost = False  # the stream stops for good, and with it the process
    provides = frozenset({Capability.GRAPH_SAFE})
    dtype, adapter, hidden = "bfloat16", TorchAdapter("cuda"), 2048


@pytest.mark.gpu
class TestMooncakeEP(OnDevices):
    __test__, tolerance = True, 0.02

    @pytest.fixture
    def world(self, whole):
        return whole.renewed()


@pytest.mark.gpu
class TestEightBits(OnDevices):
    __test__, tolerance = True, 0.08

    @pytest.fixture
    def world(self, small):
        return small.renewed()
