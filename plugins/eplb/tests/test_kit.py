"""The kit of balancers, on both offers."""

import pytest

from stepwell_eplb import Deepseek, DeepseekConfig, Incremental, IncrementalConfig
from stepwell_testkit import BalanceKit


class TestDeepseek(BalanceKit):
    hierarchical = True

    @pytest.fixture
    def balancer(self, context):
        return Deepseek(DeepseekConfig(), context)


class TestDeepseekGlobal(BalanceKit):
    @pytest.fixture
    def balancer(self, context):
        return Deepseek(DeepseekConfig(mode="global"), context)


class TestIncremental(BalanceKit):
    hierarchical = True

    @pytest.fixture
    def balancer(self, context):
        return Incremental(IncrementalConfig(), context)


class TestIncrementalAtAnyPrice(BalanceKit):
    @pytest.fixture
    def balancer(self, context):
        return Incremental(IncrementalConfig(budget=1.0, target=1.0, mode="global"), context)
