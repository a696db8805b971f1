"""The double takes what the library takes, where the library is installed."""

from pathlib import Path

import pytest

from stepwell_kernels.dispatch.fit import folder
from stepwell_testkit.signatures import apart

DOUBLE = Path(__file__).parent / "double" / "deep_ep"
NORMAL = "__init__ set_num_sms get_dispatch_config get_combine_config get_dispatch_layout dispatch combine destroy"
LOW = "get_low_latency_rdma_size_hint clean_low_latency_buffer low_latency_dispatch low_latency_combine"
ELASTIC = "__init__ get_buffer_size_hint capture dispatch combine destroy"


def source(*names):
    at = folder("deep_ep")
    found = [at / name for name in names if at is not None and (at / name).exists()]
    if not found:
        pytest.skip("the library is not installed")
    return found[0]


def test_normal():
    library = source("buffers/legacy.py", "buffer.py")
    assert apart(DOUBLE / "__init__.py", library, "Buffer", NORMAL.split()) == []


def test_low_latency():
    library = source("buffers/legacy.py", "buffer.py")
    assert apart(DOUBLE / "low.py", library, "Buffer", LOW.split()) == []


def test_second_generation():
    library = source("buffers/elastic.py")
    assert apart(DOUBLE / "elastic.py", library, "ElasticBuffer", ELASTIC.split()) == []
