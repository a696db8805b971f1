"""Every distribution of the workspace has one version, and asks for core of that minor."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

import stepwell

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted(
    [*ROOT.glob("core/pyproject.toml"), *ROOT.glob("kernels/pyproject.toml"), *ROOT.glob("plugins/*/pyproject.toml")]
)
PROJECTS = {str(path.parent.relative_to(ROOT)): tomllib.loads(path.read_text())["project"] for path in FILES}
MAJOR, MINOR = stepwell.__version__.split(".")[:2]


@pytest.mark.parametrize("project", PROJECTS.values(), ids=PROJECTS)
def test_one_version(project: dict[str, Any]) -> None:
    assert project["version"] == stepwell.__version__


@pytest.mark.parametrize("project", PROJECTS.values(), ids=PROJECTS)
def test_what_is_said_of_every_distribution(project: dict[str, Any]) -> None:
    assert project["requires-python"] == ">=3.11"
    assert project["license"] == "Apache-2.0"
    assert project["description"].endswith(".")
    assert project["name"] == "stepwell" or project["name"].startswith("stepwell-")


@pytest.mark.parametrize("folder", [folder for folder in PROJECTS if folder.startswith("plugins/")])
def test_plugins_ask_for_core_of_this_minor(folder: str) -> None:
    window = f"stepwell>={MAJOR}.{MINOR},<{MAJOR}.{int(MINOR) + 1}"
    assert window in PROJECTS[folder]["dependencies"]
