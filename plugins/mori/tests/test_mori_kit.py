"""The kit, on the double."""

import pytest

from stepwell_mori.config import MoriConfig
from stepwell_testkit import DispatchKit, TorchAdapter


class TestMori(DispatchKit):
    notices_lost = False  # its kernels wait for ever
    dtype, tolerance, adapter = "bfloat16", 0.02, TorchAdapter()

    @pytest.fixture
    def dispatchers(self, over):
        return over()


class TestSendsAndReceivesApart(DispatchKit):
    notices_lost = False
    dtype, tolerance, adapter = "bfloat16", 0.02, TorchAdapter()

    @pytest.fixture
    def dispatchers(self, over):
        return over(MoriConfig(kernel="AsyncLL"))
