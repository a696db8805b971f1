"""The double takes what the library takes, where the library is installed."""

from pathlib import Path

import pytest

from stepwell_kernels.dispatch.fit import folder
from stepwell_testkit.signatures import apart

DOUBLE = Path(__file__).parent / "double" / "mori" / "ops.py"
CALLS = "__init__ dispatch dispatch_send dispatch_recv combine combine_send combine_recv"


@pytest.mark.parametrize(("name", "methods"), [("EpDispatchCombineOp", CALLS), ("EpDispatchCombineConfig", "__init__")])
def test_the_operator(name, methods):
    at = folder("mori")
    if at is None:
        pytest.skip("the library is not installed")
    assert apart(DOUBLE, at / "ops" / "dispatch_combine.py", name, methods.split()) == []
