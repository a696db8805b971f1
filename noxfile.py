# /// script
# requires-python = ">=3.11"
# dependencies = ["nox"]
# ///
"""The whole check: `python3 noxfile.py`. The whole demonstration: `python3 noxfile.py -s demo`.

Needs only Python and git: without nox it makes itself an environment in `.nox/boot` and starts again there.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent

try:
    import nox
except ModuleNotFoundError:
    BOOT = ROOT / ".nox" / "boot"
    PYTHON = BOOT / "bin" / "python"
    if Path(sys.prefix) == BOOT:
        raise
    if not PYTHON.exists():
        print(f"setting up nox in {BOOT}", flush=True)
        venv.create(BOOT, with_pip=True, clear=True)
    subprocess.check_call([PYTHON, "-m", "pip", "install", "--quiet", "nox>=2025.2.9"])
    os.execv(PYTHON, [str(PYTHON), str(Path(__file__).resolve()), *sys.argv[1:]])

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # else each of hundreds of processes compiles what it imports
nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "venv"
nox.options.reuse_venv = "yes"
nox.options.error_on_external_run = True

CONSTRAINTS = ROOT / "constraints.txt"
TEST_TOOLS = (
    "pytest>=8,<9.2",  # pytest-xdist 3.8 groups nothing under 9.2
    "pytest-timeout",
    "pytest-xdist>=3.5",
    "pytest-rerunfailures>=15",
    "hypothesis",
    "openai>=1.60",
    "httpx",
)
TWO_AT_ONCE = ("-n", "2", "--dist", "loadgroup")
"""Most tests wait for servers, deadlines and child processes; see conftest.py for what stays together."""
BUILD = ("hatchling", "editables")
"""What builds every distribution: installed once, where pip would set up an environment for each of them."""
STRICT = ("core/src/stepwell", "plugins/testkit/src/stepwell_testkit")


def folders() -> list[Path]:
    """Every distribution of the workspace, core first."""
    found = sorted(path.parent for path in ROOT.glob("plugins/*/pyproject.toml"))
    return [ROOT / "core", ROOT / "kernels", *found]


def install(session: nox.Session, *what: str) -> None:
    """Install, held to the one pin of torch; modules are compiled when they are first imported, and most never are."""
    session.install("--quiet", "--no-compile", "--constraint", str(CONSTRAINTS), *what)


def install_editable(session: nox.Session, folders: Iterable[str], *more: str) -> None:
    """Distributions as they lie in the tree (a folder, or one with extras), in one environment."""
    install(session, *BUILD)
    editable = [part for folder in folders for part in ("--editable", folder)]
    install(session, "--no-build-isolation", *editable, *more)


def install_workspace(session: nox.Session, *more: str) -> None:
    """Every distribution, editable, in one environment."""
    install_editable(session, map(str, folders()), *more)


def install_for_tests(session: nox.Session) -> None:
    """The workspace with what tests ask for: each distribution's extra `tests`, and hosts without their own needs."""
    extras = [f"{folder}[tests]" if has_tests_extra(folder) else str(folder) for folder in folders()]
    install_editable(session, extras, *TEST_TOOLS)
    for bare in sorted(ROOT.glob("plugins/*/tests/no-deps.txt")):
        install(session, "--no-deps", "--requirement", str(bare))


def has_tests_extra(folder: Path) -> bool:
    """Whether a distribution names what its tests need."""
    return "tests" in project(folder).get("optional-dependencies", {})


def project(folder: Path) -> dict[str, Any]:
    """What a distribution says of itself."""
    return tomllib.loads((folder / "pyproject.toml").read_text())["project"]


@nox.session
def lint(session: nox.Session) -> None:
    """ruff: rules and format."""
    install(session, "ruff>=0.17,<0.18")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session
def types(session: nox.Session) -> None:
    """mypy, strict on core and testkit."""
    install_editable(session, (str(ROOT / name) for name in ("core", "plugins/testkit")), "mypy>=2,<3")
    session.run("mypy", *STRICT)


@nox.session
def tests(session: nox.Session) -> None:
    """Every test, every distribution installed side by side."""
    install_for_tests(session)
    everything = [*TWO_AT_ONCE, "-rR", "core", "kernels", "plugins", "tests"]
    session.run("pytest", *(session.posargs or everything), env={"STEPWELL_TESTS": "1"})


@nox.session
def alone(session: nox.Session) -> None:
    """Each plugin with only what it declares: imports, is offered, and finds nothing undeclared."""
    install(session, "virtualenv", *BUILD)
    home = Path(session.create_tmp())
    built = home / "wheels"
    shutil.rmtree(built, ignore_errors=True)
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(built))
    session.run("python", "-m", "pip", "wheel", *options, *map(str, folders()))
    for folder in folders():
        if session.posargs and folder.name not in session.posargs:
            continue
        check_alone(session, folder, home / folder.name, built)


def check_alone(session: nox.Session, folder: Path, home: Path, built: Path) -> None:
    """Install one distribution's wheel into an empty environment and let it list and import itself."""
    session.run("virtualenv", "--quiet", "--clear", "--no-pip", str(home))
    python = str(home / "bin" / "python")
    wheels = [str(wheel(built, name)) for name in sorted(own_needs(project(folder)["name"]))]
    install = ("install", "--quiet", "--no-compile", "--constraint", str(CONSTRAINTS))
    session.run("python", "-m", "pip", "--python", python, *install, *wheels)
    session.run(python, str(ROOT / "tests" / "alone.py"), str(folder), external=True)


def own_needs(name: str) -> set[str]:
    """A distribution of the workspace and all others of it that it declares to need."""
    projects = {one["name"]: one for one in map(project, folders())}
    declared = {re.split(r"[^A-Za-z0-9_-]", text)[0] for text in projects[name].get("dependencies", ())}
    return {name}.union(*(own_needs(other) for other in declared & projects.keys()))


def wheel(built: Path, name: str) -> Path:
    """The wheel of a distribution among those just built."""
    (found,) = built.glob(f"{name.replace('-', '_')}-*.whl")
    return found


@nox.session
def docs(session: nox.Session) -> None:
    """Generate the reference pages from the code and build the site strictly."""
    install_workspace(session, "mkdocs>=1.6,<2", "mkdocs-material>=9.5,<10")
    session.run("python", "docs/generate.py")
    session.run("mkdocs", "build", "--strict", "--quiet", "--config-file", "docs/mkdocs.yml")


@nox.session(default=False)
def demo(session: nox.Session) -> None:
    """The main job: a real model, three tiers, a restart; writes build/demo.json."""
    install_workspace(session, "httpx")
    session.run("python", "docs/demo/demo.py", *session.posargs)


@nox.session(default=False)
def wheels(session: nox.Session) -> None:
    """Build every wheel, install them into an empty environment and run doctor."""
    out = ROOT / "build" / "wheels"
    install(session, "build")
    for folder in folders():
        session.run("python", "-m", "build", "--wheel", "--outdir", str(out), str(folder), silent=True)
    install(session, *(str(path) for path in sorted(out.glob("*.whl"))))
    session.run("stepwell", "plugins")
    session.run("stepwell", "doctor", "docs/demo/demo.toml")


@nox.session(default=False)
def minimums(session: nox.Session) -> None:
    """Core's tests on the oldest dependencies it declares."""
    oldest = ("pluggy==1.6.0", "click==8.1.0", "rich==13.0.0", "msgspec==0.19.0", "pyzmq==26.0.0", "xxhash==3.4.0")
    install(
        session, *oldest, "--editable", str(ROOT / "core"), "--editable", str(ROOT / "plugins/testkit"), *TEST_TOOLS
    )
    session.run("pytest", "core/tests/plugins", "core/tests/config", "core/tests/cli", "core/tests/cache")


@nox.session(default=False)
def bench(session: nox.Session) -> None:
    """The benchmarks that the docs cite; results in build/bench/."""
    install_workspace(session)
    out = ROOT / "build" / "bench"
    out.mkdir(parents=True, exist_ok=True)
    for name, command in {
        "index": ("stepwell", "bench", "index", "--json"),
        "windows": ("stepwell", "bench", "windows", "--json"),
        "branches": ("stepwell", "bench", "branches", "--json"),
        "storage": ("stepwell", "bench", "storage", "--backend", "file", "--json"),
    }.items():
        text = session.run(*command, silent=True)
        (out / f"{name}.json").write_text(str(text))
        session.log(f"wrote {out / name}.json")


@nox.session(default=False)
def bump(session: nox.Session) -> None:
    """Set the version of every distribution: `nox -s bump -- 0.2.0`."""
    install(session, "tomlkit")
    session.run("python", "tests/bump.py", *session.posargs)


if __name__ == "__main__":
    nox.main()
