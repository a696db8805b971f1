"""The kit, on the double; and on the library where it and a GPU are."""

import importlib.util

import pytest
import torch

from stepwell import AttentionLayers, Capability, Full
from stepwell_flashinfer.attention import FlashInfer
from stepwell_flashinfer.config import FlashInferConfig
from stepwell_testkit import PagedAttentionKit

KINDS = (
    AttentionLayers(4, 1, 64, 64, 4, "bfloat16", Full(), 0.125),
    AttentionLayers(4, 2, 64, 64, 16, "float16", Full(), 0.2),
)


class Torch:
    """Tensors on a device."""

    def __init__(self, device):
        self.device = device

    def give(self, array, dtype):
        return torch.from_numpy(array).to(self.device, getattr(torch, dtype))

    def take(self, tensor):
        return tensor.float().cpu().numpy()


class TestDouble(PagedAttentionKit):
    provides = frozenset({Capability.GRAPH_SAFE})
    kinds, tolerance, adapter = KINDS, 3e-2, Torch("cpu")

    @pytest.fixture
    def attention(self, double):
        return FlashInfer(double, FlashInferConfig(workspace_mib=1), torch.device("cpu"))


@pytest.mark.gpu
@pytest.mark.skipif(
    not torch.cuda.is_available() or importlib.util.find_spec("flashinfer") is None,
    reason="needs the library and a GPU",
)
class TestLibrary(PagedAttentionKit):
    provides = frozenset({Capability.GRAPH_SAFE})
    kinds, tolerance, adapter = KINDS, 3e-2, Torch("cuda")

    @pytest.fixture
    def attention(self):
        import flashinfer

        return FlashInfer(flashinfer, FlashInferConfig(), torch.device("cuda", 0))
