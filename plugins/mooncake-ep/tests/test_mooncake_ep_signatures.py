"""The double takes what the library takes, where the library is installed."""

from pathlib import Path

import pytest

from stepwell_kernels.dispatch.fit import folder
from stepwell_testkit.signatures import apart, parameters

DOUBLE = Path(__file__).parent / "double" / "mooncake" / "mooncake_ep_buffer.py"


@pytest.fixture
def library():
    at = folder("mooncake")
    if at is None or not (at / "mooncake_ep_buffer.py").exists():
        pytest.skip("the library is not installed")
    return at / "mooncake_ep_buffer.py"


def test_the_buffer(library):
    assert apart(DOUBLE, library, "Buffer", ["__init__", "get_ep_buffer_size_hint"]) == []


@pytest.mark.parametrize("name", ["dispatch", "combine"])
def test_its_two_calls_which_newer_ones_pass_on(library, name):
    theirs, ours = parameters(library, "Buffer"), parameters(DOUBLE, "Buffer")[name]
    assert theirs.get(f"_{name}_legacy", theirs[name])[: len(ours)] == ours
