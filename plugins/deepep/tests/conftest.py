"""The double in the library's place, and dispatchers over it, one a rank."""

import sys
from pathlib import Path

import pytest
import torch
from torch import distributed

from stepwell_testkit.wire import Seat, Wire


@pytest.fixture
def double(monkeypatch):
    """`deep_ep`, as far as the plugin uses it."""
    monkeypatch.syspath_prepend(Path(__file__).parent / "double")
    before = {name for name in sys.modules if name.split(".")[0] == "deep_ep"}
    for name in before:
        monkeypatch.delitem(sys.modules, name)
    yield __import__("deep_ep")
    for name in [name for name in sys.modules if name.split(".")[0] == "deep_ep"]:
        del sys.modules[name]


@pytest.fixture
def over(double, request):
    """`over(make, config, ranks)`: unopened dispatchers that share a wire."""

    def make_all(make, config, ranks=4):
        lost = "stays_away" in request.node.name or "too_late" in request.node.name
        store, wire = distributed.HashStore(), Wire(ranks, patience_s=0.7 if lost else 20.0)
        double.wired.wires.update(dict.fromkeys(("deepep", "deepep-v2", "deepep-low-latency"), wire))
        seats = [Seat(rank, ranks, store, torch.device("cpu")) for rank in range(ranks)]
        return [make(double, config, lambda seat=seat: seat) for seat in seats]

    return make_all
