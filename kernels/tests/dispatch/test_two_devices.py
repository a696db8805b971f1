"""The dispatchers over NCCL, two ranks on two CUDA devices; captured, too, where they say that they can be."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from stepwell_testkit import DispatchKit, TorchAdapter
from stepwell_testkit.pool import Processes

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="this machine has no two CUDA devices"),
]


@pytest.fixture(scope="module")
def rank() -> Iterator[ModuleType]:
    """The module of a rank, importable here and, by the path, in spawned processes."""
    sys.path.append(str(Path(__file__).parent))
    import nccl_rank

    yield nccl_rank
    sys.path.remove(str(Path(__file__).parent))


@pytest.fixture(scope="module")
def normal(rank: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    with Processes(rank.normal, 2, tmp_path_factory.mktemp("meet"), limit_s=120, start="spawn") as found:
        yield found


@pytest.fixture(scope="module")
def low_latency(rank: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    with Processes(rank.low_latency, 2, tmp_path_factory.mktemp("meet"), limit_s=120, start="spawn") as found:
        yield found


class OnDevices(DispatchKit):
    __test__ = False
    adapter = TorchAdapter("cuda")
    notices_lost = False  # NCCL's watchdog ends the process


class TestNormal(OnDevices):
    __test__ = True

    @pytest.fixture
    def world(self, normal: Processes) -> Processes:
        return normal.renewed()


class TestLowLatency(OnDevices):
    __test__ = True
    dtype, tolerance = "bfloat16", 0.02

    @pytest.fixture
    def world(self, low_latency: Processes) -> Processes:
        return low_latency.renewed()


def test_a_captured_exchange_follows_what_is_routed(rank: ModuleType, low_latency: Processes) -> None:
    off = low_latency.renewed().run(rank.captured)
    assert max(off) < 0.02
