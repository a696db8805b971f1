"""The double in the library's place."""

from pathlib import Path

import pytest


@pytest.fixture
def double(monkeypatch):
    """`flashinfer`, as far as the plugin uses it."""
    monkeypatch.syspath_prepend(Path(__file__).parent / "double")
    monkeypatch.delitem(__import__("sys").modules, "flashinfer", raising=False)
    yield __import__("flashinfer")
    __import__("sys").modules.pop("flashinfer", None)
