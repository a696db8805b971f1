"""Traces of known shape, and `stepwell replay` on them."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from stepwell.cli import root

SMALL = ("replay.devices=1", "cache.device_pages=40", "cache.host_pages=60")
STORED = (*SMALL, "replay.storage_gib=40", "write.use=write_through")


def write(path: Path, lines: Iterable[Mapping[str, object]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def conversations(requests: int = 160, seed: int = 1, gap_ms: int = 400) -> list[dict[str, object]]:
    """Mooncake lines: conversations that grow by a few blocks a turn and share a system prompt."""
    dice, fresh = random.Random(seed), iter(range(10, 10**6))
    talks: list[list[int]] = [[0, 1] for _ in range(12)]
    lines = []
    for number in range(requests):
        at = dice.randrange(len(talks))
        talks[at] = [0, 1] if len(talks[at]) > 24 else [*talks[at], *(next(fresh) for _ in range(dice.randint(1, 4)))]
        length = len(talks[at]) * 512 - dice.randrange(512)
        lines.append(
            {
                "timestamp": number * gap_ms,
                "input_length": length,
                "output_length": dice.randint(1, 60),
                "hash_ids": list(talks[at]),
            }
        )
    return lines


def replay(path: Path, *options: str, sets: Iterable[str] = ()) -> Any:
    """The JSON document of a replay."""
    result = CliRunner().invoke(root, ["replay", str(path), "--json", *options, *_sets(sets)])
    assert result.exit_code == 0, (result.output, result.exception)
    return json.loads(result.stdout)


def refused(path: Path | str, *options: str, sets: Iterable[str] = ()) -> str:
    """The sentence of a replay that must not start."""
    result = CliRunner().invoke(root, ["replay", str(path), *options, *_sets(sets)])
    assert result.exit_code == 2, (result.output, result.exception)
    words = result.output.strip()
    assert "Traceback" not in words
    return words


def _sets(sets: Iterable[str]) -> list[str]:
    return [part for one in sets for part in ("--set", one)]


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No plugin and no config of this machine takes part."""
    monkeypatch.setenv("STEPWELL_PLUGINS", "")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write(tmp_path / "trace.jsonl", conversations())


@pytest.fixture(scope="session")
def published() -> Path:
    """The folder of published traces: STEPWELL_TRACES, or one beside the repository."""
    beside = Path(__file__).resolve().parents[4] / "shared" / "traces"
    folder = Path(os.environ.get("STEPWELL_TRACES", beside))
    if not (folder / "mooncake_conversation_trace.jsonl").is_file():
        pytest.skip(f"no traces in {folder}; set STEPWELL_TRACES")
    return folder
