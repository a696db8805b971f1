"""Set one version in every pyproject of the workspace, and in what they require of each other."""

import sys
from pathlib import Path

import tomlkit

ROOT = Path(__file__).resolve().parents[1]


def main(version: str) -> None:
    """Rewrite project.version and the requirement on stepwell in each distribution, and `__version__` of core."""
    major, minor = version.split(".")[:2]
    window = f"stepwell>={major}.{minor},<{major}.{int(minor) + 1}"
    for path in [ROOT / "core/pyproject.toml", ROOT / "kernels/pyproject.toml", *ROOT.glob("plugins/*/pyproject.toml")]:
        document = tomlkit.parse(path.read_text())
        project = document["project"]
        project["version"] = version
        requires = project.get("dependencies", [])
        for at, text in enumerate(requires):
            if text.startswith("stepwell>="):
                requires[at] = window
        path.write_text(tomlkit.dumps(document))
    init = ROOT / "core/src/stepwell/__init__.py"
    lines = [f'__version__ = "{version}"' if x.startswith("__version__") else x for x in init.read_text().splitlines()]
    init.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: bump.py VERSION")
    main(sys.argv[1])
