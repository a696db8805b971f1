"""The double takes what the library takes, where the library is installed."""

from pathlib import Path

import pytest

from stepwell_kernels.dispatch.fit import folder
from stepwell_nixl_ep.fit import package
from stepwell_testkit.signatures import apart

DOUBLE = Path(__file__).parent / "double" / "nixl_ep" / "__init__.py"
CALLS = (
    "__init__ get_rdma_size_hint update_memory_buffers connect_ranks low_latency_dispatch low_latency_combine"
    " dispatch combine query_mask_buffer destroy"
)


def test_the_buffer():
    name = package()
    at = folder(name) if name else None
    if at is None:
        pytest.skip("the library is not installed")
    assert apart(DOUBLE, at / "buffer.py", "Buffer", CALLS.split()) == []
