"""The kit: ranks as threads, kernels in Triton's interpreter, where each takes a tenth of a second."""

from __future__ import annotations

import pytest

from stepwell import Capability
from stepwell_testkit import DispatchKit, TorchAdapter
from stepwell_testkit.dispatch import flight

pytest.importorskip("triton")
from stepwell_symm.config import SymmConfig, SymmLowConfig
from stepwell_symm.low import SymmLow
from stepwell_symm.normal import Symm


class Interpreted(DispatchKit):
    """Small enough to be quick."""

    experts, top_k, hidden, max_tokens = 4, 2, 128, 3
    adapter, limit_s = TorchAdapter(), 120.0

    @pytest.fixture(autouse=True)
    def few_orders(self, monkeypatch):
        """Of seventy orders of two batches, those of one after the other, and three more."""
        monkeypatch.setattr(flight, "PAIRS", flight.PAIRS[::23])


class TestSymm(Interpreted):
    @pytest.fixture
    def dispatchers(self, spread):
        return spread(Symm, SymmConfig(programs=2), 2)


class TestSymmLow(Interpreted):
    provides = frozenset({Capability.GRAPH_SAFE})

    @pytest.fixture
    def dispatchers(self, spread):
        return spread(SymmLow, SymmLowConfig(capacity=3), 2)
