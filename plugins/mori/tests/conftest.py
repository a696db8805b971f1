"""The double in the library's place, and dispatchers over it, one a rank."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import distributed

from stepwell_mori.config import MoriConfig
from stepwell_mori.dispatch import Mori
from stepwell_testkit.wire import Seat, Wire


@pytest.fixture
def double(monkeypatch):
    """`mori.ops` and `mori.shmem`, as far as the plugin uses them."""
    monkeypatch.syspath_prepend(Path(__file__).parent / "double")
    for name in [name for name in sys.modules if name.split(".")[0] == "mori"]:
        monkeypatch.delitem(sys.modules, name)
    import mori.ops as ops
    import mori.shmem as shmem

    yield SimpleNamespace(ops=ops, shmem=shmem)
    for name in [name for name in sys.modules if name.split(".")[0] == "mori"]:
        del sys.modules[name]


@pytest.fixture
def over(double):
    """`over(config, ranks)`: unopened dispatchers that share a wire."""

    def make_all(config=None, ranks=4):
        store = distributed.HashStore()
        double.ops.wire = Wire(ranks)
        seats = [Seat(rank, ranks, store, torch.device("cpu")) for rank in range(ranks)]
        return [Mori(double.ops, double.shmem, config or MoriConfig(), lambda seat=seat: seat) for seat in seats]

    return make_all
