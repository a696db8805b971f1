"""Imports inside core run downwards only; core imports no torch and no plugin; one file reads the environment."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CORE = ROOT / "core" / "src" / "stepwell"

FLOORS = (
    ("types", "errors", "said", "private"),
    ("abc", "hookspecs", "offers", "markers"),
    (
        *("plugins", "registry", "register", "records", "requires", "discover", "suggest"),
        *("config", "sources", "coerce", "settings", "shown", "switches", "resolve", "models"),
        *("cache", "schedule"),
    ),
    ("engine", "route", "replay"),
    ("builtin", "assemble", "sizing", "replay_build", "process", "api"),
    ("cli", "bench", "__main__"),
)
"""The rooms of core from the ground up. A room imports rooms below; on its own floor never in a circle."""

FLOOR = {room: floor for floor, rooms in enumerate(FLOORS, 1) for room in rooms}
PACKAGE = "__init__"
"""What the package re-exports is of the two lowest floors, so importing from it is as low."""

FORBIDDEN = {"torch", "transformers", "triton", "safetensors", "gguf", "starlette", "fastapi", "uvicorn", "httpx"}


def sources() -> dict[str, list[Path]]:
    """Every module of core, by room."""
    found = defaultdict(list)
    for path in sorted(CORE.rglob("*.py")):
        found[path.relative_to(CORE).parts[0].removesuffix(".py")].append(path)
    return dict(found)


def imported(path: Path, text: str | None = None) -> Iterator[tuple[str, str]]:
    """Every import of a module with its place; what only a type checker reads does not count."""
    for node in below(ast.parse(text or path.read_text(encoding="utf-8"))):
        place = f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Import):
            yield from ((place, name.name) for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{place}: import by the full name"
            names = [f"stepwell.{name.name}" for name in node.names]
            yield from ((place, name) for name in (names if node.module == "stepwell" else [node.module or ""]))


def below(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those under `if TYPE_CHECKING`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            continue
        yield node
        yield from below(node)


def target(name: str) -> str | None:
    """The room of core that an import reaches; None for other libraries and for the package's own names."""
    parts = name.split(".")
    return parts[1] if parts[0] == "stepwell" and len(parts) > 1 and parts[1] in FLOOR else None


def upward(room: str, path: Path, text: str | None = None) -> list[str]:
    """The imports that go up."""
    reached = [(place, name, target(name)) for place, name in imported(path, text)]
    return [f"{place}: {room} imports {name}" for place, name, to in reached if to and FLOOR[to] > FLOOR[room]]


def test_every_room_has_a_floor() -> None:
    assert set(sources()) == {*FLOOR, PACKAGE}


def test_imports_run_downwards() -> None:
    assert [
        line for room, paths in sources().items() if room != PACKAGE for p in paths for line in upward(room, p)
    ] == []


def test_rooms_on_one_floor_do_not_import_each_other_in_a_circle() -> None:
    graph = {
        room: {to for path in paths for _, name in imported(path) if (to := target(name)) and to != room}
        for room, paths in sources().items()
    }
    TopologicalSorter(graph).prepare()


def test_the_package_imports_the_two_lowest_floors_and_the_rest_when_asked() -> None:
    tree = ast.parse((CORE / "__init__.py").read_text(encoding="utf-8"))
    rooms = {node.module.split(".")[1] for node in tree.body if isinstance(node, ast.ImportFrom) and node.module}
    assert rooms
    assert {FLOOR[room] for room in rooms} <= {1, 2}


def test_core_imports_no_torch_and_no_plugin() -> None:
    others = {path.name for path in [*ROOT.glob("plugins/*/src/*"), *ROOT.glob("kernels/src/*")]}
    assert others
    found = [line for paths in sources().values() for path in paths for line in imported(path)]
    assert [f"{place}: {name}" for place, name in found if name.split(".")[0] in FORBIDDEN | others] == []


def test_only_config_reads_the_environment() -> None:
    readers = {
        room
        for room, paths in sources().items()
        for path in paths
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and ast.unparse(node) in ("os.environ", "os.environb", "os.getenv")
    }
    assert readers == {"config"}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("from stepwell.cli import root", True),
        ("def f():\n    import stepwell.cli", True),
        ("from stepwell import cli", True),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from stepwell.cli import root", False),
        ("from stepwell import Offer, ConfigError", False),
        ("from stepwell.types import Tier\nimport stepwell\nimport click", False),
    ],
)
def test_what_counts_as_upward(text: str, found: bool) -> None:
    assert bool(upward("cache", CORE / "cache" / "imagined.py", text)) is found
