"""Configs out of strings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from stepwell.config import Config

Make = Callable[..., Config]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """`make(toml, env={}, sets=())`: a config whose file is called site.toml."""
    monkeypatch.chdir(tmp_path)

    def build(
        toml: str = "", env: Mapping[str, str] | None = None, sets: Sequence[str] = (), **extra: object
    ) -> Config:
        Path("site.toml").write_text(toml)
        return Config.load(Path("site.toml"), env or {}, sets, extra)

    return build
