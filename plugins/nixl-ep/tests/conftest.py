"""The double in the library's place, and dispatchers over it, one a rank."""

import sys
from pathlib import Path

import pytest
import torch
from torch import distributed

from stepwell_nixl_ep.config import NixlEPConfig
from stepwell_nixl_ep.dispatch import NixlEP
from stepwell_testkit.wire import Seat, Wire


@pytest.fixture
def double(monkeypatch):
    """`nixl_ep`, as far as the plugin uses it."""
    monkeypatch.syspath_prepend(Path(__file__).parent / "double")
    for name in [name for name in sys.modules if name.split(".")[0] == "nixl_ep"]:
        monkeypatch.delitem(sys.modules, name)
    yield __import__("nixl_ep")
    for name in [name for name in sys.modules if name.split(".")[0] == "nixl_ep"]:
        del sys.modules[name]


@pytest.fixture
def over(double, request):
    """`over(config, ranks)`: unopened dispatchers that share a wire."""

    def make_all(config=None, ranks=2):
        lost = "stays_away" in request.node.name or "too_late" in request.node.name
        store = distributed.HashStore()
        double.wire = Wire(ranks, patience_s=0.7 if lost else 20.0)
        seats = [Seat(rank, ranks, store, torch.device("cpu")) for rank in range(ranks)]
        return [NixlEP(double, config or NixlEPConfig(), lambda seat=seat: seat) for seat in seats]

    return make_all
