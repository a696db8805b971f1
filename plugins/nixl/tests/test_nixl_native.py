"""NIXL alone, as `stepwell bench storage` holds each storage against it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from stepwell_nixl import make_native
from stepwell_nixl.config import NixlConfig
from stepwell_testkit import KitContext
from stepwell_testkit.arena import KitArena

PAGES = 16


@pytest.mark.parametrize("kind", ["nixl", "nixl-obj", "nixl-ucx"])
def test_what_it_puts_it_gets(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    configs: dict[str, Any] = {
        "nixl": lambda: NixlConfig(path=tmp_path, gib=0.01),
        "nixl-obj": lambda: request.getfixturevalue("s3").config,
        "nixl-ucx": lambda: request.getfixturevalue("peer").config,
    }
    arena = KitArena(8192, PAGES)
    native = make_native(configs[kind](), KitContext(tmp_path), arena)
    views = arena.views(range(PAGES))
    for _ in range(3):
        keys = [os.urandom(40) for _ in range(PAGES)]
        right = [os.urandom(8192) for _ in range(PAGES)]
        for slot, page in enumerate(right):
            arena.fill(slot, page)
        native.put(keys, views)
        arena.paint(0)
        native.get(keys[::-1], views)
        assert [arena.page(slot) for slot in range(PAGES)] == right[::-1]
    native.close()
    assert not list(tmp_path.glob("native-*"))
