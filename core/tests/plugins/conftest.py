"""Plugins out of strings, and a registry of nothing but them and core."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stepwell.plugins import Registry, load

STORAGE = """
from stepwell import NoConfig, Offer, hookimpl

@hookimpl
def stepwell_storages():
    return [Offer("{name}", lambda config, context: object(), NoConfig)]
"""


def storage(name: str) -> str:
    """Source of a plugin that offers one storage."""
    return STORAGE.format(name=name)


class Site:
    """Where fake plugins are installed; `load` sees them and core, and nothing else of this environment."""

    def __init__(self, fake_dist: Callable[..., Path]) -> None:
        self._fake_dist = fake_dist
        self.paths: list[str] = []

    def install(
        self, name: str, source: str, *, distribution: str = "", group: str = "stepwell.v1", **more: Any
    ) -> None:
        """Install a plugin; its module is named after its distribution, `stepwell-NAME` if not given."""
        distribution = distribution or f"stepwell-{name}"
        module = distribution.replace("-", "_")
        path = self._fake_dist(distribution, {module: source}, {group: {name: module}}, **more)
        self.paths.append(str(path))

    @property
    def distributions(self) -> list[importlib.metadata.Distribution]:
        """What is installed here."""
        return list(importlib.metadata.distributions(path=self.paths))

    def load(self, **arguments: Any) -> Registry:
        """Load it."""
        return load(distributions=self.distributions, **arguments)


@pytest.fixture
def site(fake_dist: Callable[..., Path]) -> Site:
    return Site(fake_dist)
