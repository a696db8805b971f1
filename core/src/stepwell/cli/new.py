"""`stepwell new KIND NAME`: the four files of a plugin, from templates that are part of core and so never older."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path
from string import Template

import click

from stepwell import __version__
from stepwell.errors import ConfigError
from stepwell.settings import INSIDE

KINDS = {
    "storage": ("storage", "A storage backend for Stepwell."),
    "eviction": ("evict", "An eviction policy for Stepwell."),
    "write": ("write", "A write policy for Stepwell."),
    "retain": ("retain", "A retention policy for Stepwell."),
    "schedule": ("schedule", "A schedule policy for Stepwell."),
    "route": ("route", "A route policy for Stepwell."),
    "dispatch": ("dispatch", "A dispatch backend for Stepwell."),
    "balance": ("balance", "An expert balancer for Stepwell."),
    "command": ("", "A command for Stepwell."),
}
"""What can be written: the kind of its offer, and the summary."""

NUMPY = ', "numpy>=1.26"'


@click.command()
@click.argument("kind", type=click.Choice(list(KINDS)))
@click.argument("name")
@click.option("--into", default=".", metavar="FOLDER", help="Where to put the new folder.")
def new(kind: str, name: str, into: str) -> None:
    """Write a new plugin: code, test, README.

    Makes the folder stepwell-NAME with a plugin that works, and the kit that tests it.
    """
    folder = Path(into) / f"stepwell-{plain(name)}"
    if folder.exists():
        raise ConfigError(f"{folder} exists; choose another name, or another folder with --into")
    if _installed(folder.name):
        raise ConfigError(f"{folder.name} is installed already; choose another name")
    try:
        for path, text in written(kind, name).items():
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
            click.echo(f"wrote {file}")
    except OSError as error:
        raise ConfigError(
            f"{folder} cannot be written ({error.strerror}); choose another folder with --into"
        ) from error
    click.echo(f"next: cd {folder} && pip install -e '.[test]' && pytest")


def plain(name: str) -> str:
    """The plugin's name; ConfigError where it would not do as part of a distribution's and a module's name."""
    short = name.removeprefix("stepwell-")
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", short):
        raise ConfigError(f"{name!r} is no name for a plugin; use a-z, 0-9 and single dashes, such as my-store")
    return short


def written(kind: str, name: str) -> dict[str, str]:
    """The files of the plugin, by their path in its folder."""
    offers, summary = KINDS[kind]
    short = plain(name)
    major, minor = __version__.split(".")[:2]
    words = {
        "name": short,
        "module": f"stepwell_{short.replace('-', '_')}",
        "distribution": f"stepwell-{short}",
        "title": "".join(part.capitalize() for part in short.split("-")),
        "section": INSIDE.get(offers, offers),
        "summary": summary,
        "api": f"{major}.{minor}",
        "next": f"{major}.{int(minor) + 1}",
        "more": {"command": ', "click>=8.1"', "dispatch": NUMPY, "balance": NUMPY}.get(kind, ""),
    }
    words["usage"] = _filled("usage_command.txt" if kind == "command" else "usage.txt", words)
    return {
        "pyproject.toml": _filled("pyproject.toml.txt", words),
        "README.md": _filled("README.md.txt", words),
        f"src/{words['module']}/__init__.py": _filled(f"{kind}.py.txt", words),
        f"tests/test_{words['module'].removeprefix('stepwell_')}.py": _filled(f"{kind}_test.py.txt", words),
    }


def _installed(distribution: str) -> bool:
    try:
        return bool(version(distribution))
    except PackageNotFoundError:
        return False


def _filled(template: str, words: dict[str, str]) -> str:
    text = (files("stepwell") / "templates" / template).read_text(encoding="utf-8")
    return Template(text).substitute(words)
