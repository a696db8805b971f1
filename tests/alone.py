"""Run inside an environment that holds one distribution and what it declares: import all of it, ask for its offers."""

import importlib
import importlib.metadata
import pkgutil
import re
import sys
import tomllib
from pathlib import Path
from typing import Any


def modules(folder: Path) -> list[str]:
    """Every module of the distribution, by dotted name."""
    found = []
    for package in sorted((folder / "src").iterdir()):
        if package.is_dir() and (package / "__init__.py").exists():
            found += [package.name, *(m.name for m in pkgutil.walk_packages([str(package)], f"{package.name}."))]
    return [name for name in found if not name.endswith("__main__")]


def optional(project: dict[str, Any]) -> set[str]:
    """What the distribution's extras name: modules that need it are imported only where it is there."""
    named = [text for extra in project.get("optional-dependencies", {}).values() for text in extra]
    return {re.split(r"[^A-Za-z0-9_.-]", text)[0].lower().replace("-", "_") for text in named}


def import_or_optional(name: str, extras: set[str]) -> None:
    """Import a module; one that lacks what only an extra brings is fine."""
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in extras:
            raise


def main(folder: Path) -> int:
    """Import everything; then the plugin record of this distribution must be ok or unusable with a reason."""
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    for name in modules(folder):
        if "templates" not in name:
            import_or_optional(name, optional(project))
    own = project["name"]
    if "entry-points" not in project:
        print(f"{own}: fine alone, and no plugin")
        return 0
    from stepwell.plugins import load

    records = [record for record in load().records if record.distribution == own]
    bad = [record for record in records if record.state not in ("ok", "unusable")]
    for record in bad:
        print(f"{own}: {record.name} is {record.state}: {record.reason}")
    print(f"{own}: {len(records)} plugin(s) fine alone" if not bad else f"{own}: broken alone")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
