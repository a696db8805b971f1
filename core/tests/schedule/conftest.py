"""Admission is tested in the world that the engine's tests have."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

_NAME = "stepwell_engine_world"


@pytest.fixture
def world() -> Iterator[Callable[..., Any]]:
    """Makes brains with real cache and pages on the sim runner, see there; their host memory goes with the test."""
    made = []

    def make(*arguments: object, **options: object) -> Any:
        made.append(_module().World(*arguments, **options))
        return made[-1]

    yield make
    for one in made:
        one.arena.close()


def _module() -> ModuleType:
    if _NAME not in sys.modules:
        spec = spec_from_file_location(_NAME, Path(__file__).parents[1] / "engine" / "conftest.py")
        assert spec is not None and spec.loader is not None
        sys.modules[_NAME] = module = module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[_NAME]
