"""Admission is tested in the world that the engine's tests have."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

_NAME = "stepwell_engine_world"


@pytest.fixture(scope="session")
def world() -> type:
    """A brain with real cache and pages on the sim runner, see there."""
    if _NAME not in sys.modules:
        spec = spec_from_file_location(_NAME, Path(__file__).parents[1] / "engine" / "conftest.py")
        assert spec is not None and spec.loader is not None
        sys.modules[_NAME] = module = module_from_spec(spec)
        spec.loader.exec_module(module)
    made = sys.modules[_NAME].World
    assert isinstance(made, type)
    return made
