"""The kit, on the double."""

import pytest

from stepwell import Capability
from stepwell_deepep.config import ElasticConfig, LowLatencyConfig, NormalConfig
from stepwell_deepep.elastic import DeepEPV2
from stepwell_deepep.low_latency import DeepEPLowLatency
from stepwell_deepep.normal import DeepEP
from stepwell_testkit import DispatchKit, TorchAdapter
from stepwell_testkit.dispatch.arrivals import Arrivals
from stepwell_testkit.dispatch.sums import Sums


class TestNormal(DispatchKit):
    dtype, tolerance, adapter = "bfloat16", 0.02, TorchAdapter()

    @pytest.fixture
    def dispatchers(self, over):
        return over(DeepEP, NormalConfig())


class TestExactSizes(DispatchKit):
    dtype, tolerance, adapter = "bfloat16", 0.02, TorchAdapter()

    @pytest.fixture
    def dispatchers(self, over):
        return over(DeepEPV2, ElasticConfig())


class TestLowLatency(DispatchKit):
    provides = frozenset({Capability.GRAPH_SAFE})
    dtype, tolerance, adapter, hidden, max_tokens = "bfloat16", 0.02, TorchAdapter(), 2048, 24

    @pytest.fixture
    def dispatchers(self, over):
        return over(DeepEPLowLatency, LowLatencyConfig(capacity=6), ranks=2)


class TestEightBits(Arrivals, Sums):
    """The parts of the kit that differ by what travels."""

    provides = frozenset({Capability.GRAPH_SAFE})
    dtype, tolerance, adapter, hidden, max_tokens = "bfloat16", 0.08, TorchAdapter(), 2048, 8

    @pytest.fixture
    def dispatchers(self, over):
        return over(DeepEPLowLatency, LowLatencyConfig(tokens="float8"), ranks=2)
