"""The kit, on the double."""

import pytest

from stepwell import Capability
from stepwell_mooncake_ep.config import MooncakeEPConfig
from stepwell_testkit import DispatchKit, TorchAdapter
from stepwell_testkit.dispatch.arrivals import Arrivals
from stepwell_testkit.dispatch.sums import Sums


class TestMooncakeEP(DispatchKit):
    provides = frozenset({Capability.GRAPH_SAFE})
    dtype, tolerance, adapter, hidden = "bfloat16", 0.02, TorchAdapter(), 2048

    @pytest.fixture
    def dispatchers(self, over):
        return over(MooncakeEPConfig(capacity=6))


class TestEightBits(Arrivals, Sums):
    """The parts of the kit that differ by what travels."""

    provides = frozenset({Capability.GRAPH_SAFE})
    dtype, tolerance, adapter, hidden, max_tokens = "bfloat16", 0.08, TorchAdapter(), 2048, 8

    @pytest.fixture
    def dispatchers(self, over):
        return over(MooncakeEPConfig(tokens="float8"))
