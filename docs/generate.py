"""Write the reference pages from the code: configuration, hooks, contracts, commands."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import click

from stepwell import hookspecs
from stepwell.cli import root
from stepwell.plugins import KINDS, load

OUT = Path(__file__).parent / "pages" / "reference"
ROLES = ("storage", "evict", "write", "prefetch", "retain", "schedule", "route", "runner", "codec", "dispatch", "sink")
CORE_SECTIONS = ("cache", "engine", "tiers")


def field_docs(kind: type) -> dict[str, str]:
    """The string under each field of a dataclass, by field name."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)
    docs = {}
    for field, text in zip(body.body, body.body[1:], strict=False):
        is_text = isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and is_text:
            docs[field.target.id] = " ".join(str(text.value.value).split())
    return docs


def settings_table(kind: type) -> str:
    """A Markdown table of a settings dataclass."""
    docs = field_docs(kind)
    rows = ["| setting | type | default | meaning |", "|---|---|---|---|"]
    for field in dataclasses.fields(kind):
        default = "required" if _required(field) else f"`{_default(field)!r}`"
        shown = str(field.type).replace("|", "\\|")
        rows.append(
            f"| `{field.name}` | `{shown}` | {default} | {docs.get(field.name, '').replace('|', chr(92) + '|')} |"
        )
    return "\n".join(rows) if len(rows) > 2 else "No settings."


def _required(field: dataclasses.Field[object]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _default(field: dataclasses.Field[object]) -> object:
    return field.default if field.default is not dataclasses.MISSING else field.default_factory()  # type: ignore[misc]


def first_lines(thing: object) -> str:
    """The docstring, flat."""
    return inspect.cleandoc(inspect.getdoc(thing) or "")


def configuration() -> Iterator[str]:
    """Every section: core's own, then each kind with each offer that is installed."""
    settings = importlib.import_module("stepwell.settings")
    yield "# Configuration\n"
    yield (
        "Defaults < TOML file < environment (`STEPWELL_SECTION__KEY`) < `--set section.key=value`. "
        "`stepwell config show` prints every effective value with its origin. An unknown key is an error with a "
        'suggestion. A secret is given by reference, `key = { env = "NAME" }`, and never printed.\n'
    )
    for section in CORE_SECTIONS:
        kind = getattr(settings, f"{section.removesuffix('s').capitalize()}Settings")
        yield f"## `[{section}]`\n\n{first_lines(kind)}\n\n{settings_table(kind)}\n"
    registry = load()
    for kind_name in KINDS:
        offers = registry.offers(kind_name)
        if not offers:
            continue
        yield f"## `[{kind_name}]`\n\n`use` names the offer; the other settings are its own.\n"
        for name in sorted(offers):
            offer = registry.offer(kind_name, name)
            yield f'### `use = "{name}"`\n\n{first_lines(offer.config)}\n\n{settings_table(offer.config)}\n'


def hooks() -> Iterator[str]:
    """Every hook with its signature and contract."""
    yield f"# Hooks\n\n{first_lines(hookspecs)}\n"
    for name, hook in inspect.getmembers(hookspecs, inspect.isfunction):
        if name.startswith("stepwell_"):
            yield f"## `{name}`\n\n```python\n{name}{inspect.signature(hook)}\n```\n\n{first_lines(hook)}\n"


def contracts() -> Iterator[str]:
    """Every role's module: its ABCs and the values they speak in."""
    yield "# Contracts\n\nThe docstrings in `stepwell.abc` are the law; this page is made from them.\n"
    for role in ROLES:
        module = importlib.import_module(f"stepwell.abc.{role}")
        yield f"## {role}\n\n{first_lines(module)}\n"
        yield from (part for kind in _classes(module) for part in contract(kind))


def _classes(module: ModuleType) -> list[type]:
    own = [kind for _, kind in inspect.getmembers(module, inspect.isclass) if kind.__module__ == module.__name__]
    return sorted(own, key=lambda kind: inspect.getsourcelines(kind)[1])


def contract(kind: type) -> Iterator[str]:
    """One class: its docstring, its fields, its own public methods."""
    yield f"### `{kind.__name__}`\n\n{first_lines(kind)}\n"
    if dataclasses.is_dataclass(kind):
        yield settings_table(kind) + "\n"
    for name, method in vars(kind).items():
        if name.startswith("_") or not inspect.isfunction(method):
            continue
        must = "must be implemented" if getattr(method, "__isabstractmethod__", False) else "has a default"
        text = textwrap.indent(first_lines(method), "    ")
        yield f"- `{name}{inspect.signature(method)}` ({must})\n\n{text}\n"


def commands() -> Iterator[str]:
    """Every command with its help."""
    yield "# Commands\n"
    yield from command(root, "stepwell")


def command(thing: click.Command, path: str) -> Iterator[str]:
    """The help of a command, then of those below it."""
    context = click.Context(thing, info_name=path)
    yield f"## `{path}`\n\n```text\n{thing.get_help(context)}\n```\n"
    if isinstance(thing, click.Group):
        for name in thing.list_commands(context):
            below = thing.get_command(context, name)
            if below is not None:
                yield from command(below, f"{path} {name}")


def main() -> None:
    """Write every page."""
    OUT.mkdir(parents=True, exist_ok=True)
    for page in (configuration, hooks, contracts, commands):
        (OUT / f"{page.__name__}.md").write_text("\n".join(page()))


if __name__ == "__main__":
    main()
