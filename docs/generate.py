"""Write the reference pages from the code: configuration, hooks, contracts, commands.

Signatures and types are printed as they are written, so they come from the source and not from what runs.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import textwrap
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

import click

from stepwell import hookspecs
from stepwell.cli import root
from stepwell.plugins import Registry, load
from stepwell.replay.settings import ReplaySettings
from stepwell.settings import CORE_SECTIONS, DEFAULTS, INSIDE, ROLES

OUT = Path(__file__).parent / "pages" / "reference"
CONTRACTS = (
    *("storage", "evict", "write", "prefetch", "retain", "schedule"),
    *("route", "runner", "codec", "attend", "dispatch", "balance", "sink"),
)
"""Roles; one module of `stepwell.abc` each."""
SPEAKING = ("offers", "types")
"""Modules of values that hooks and contracts speak in."""


def main() -> None:
    """Write every page."""
    OUT.mkdir(parents=True, exist_ok=True)
    registry = load()
    for name, parts in {
        "configuration": configuration(registry),
        "hooks": hooks(),
        "contracts": contracts(),
        "commands": commands(registry),
    }.items():
        (OUT / f"{name}.md").write_text("\n".join(parts), encoding="utf-8")


# --- configuration -----------------------------------------------------------------------------------------------


def configuration(registry: Registry) -> Iterator[str]:
    """Every section: core's own, then each role with each offer that is installed, then those of plugins."""
    yield "# Configuration\n"
    yield (
        "Defaults < TOML file < environment (`STEPWELL_SECTION__KEY`) < `--set section.key=value`. "
        "`stepwell config show` prints every effective value with its origin. An unknown key is an error with a "
        'suggestion. A secret is best given by reference, `key = { env = "NAME" }`; it is never printed.\n'
    )
    for section, kind in CORE_SECTIONS.items():
        yield f"## `[{section}]`\n\n{text(kind)}\n\n{settings_table(kind)}\n"
    for section, role in ROLES.items():
        yield from role_section(section, role, registry)
        for inner, inside in INSIDE.items():
            if inside.startswith(f"{section}."):
                yield from role_section(inside, inner, registry)
    for section, kind in {"replay": ReplaySettings, **registry.sections}.items():
        yield f"## `[{section}]`\n\n{text(kind)}\n\n{settings_table(kind)}\n"


def role_section(section: str, role: str, registry: Registry) -> Iterator[str]:
    """A section whose `use` chooses an offer."""
    default = f"; `{DEFAULTS[section]}` unless set" if section in DEFAULTS else ""
    offers = registry.offers(role)
    yield f"## `[{section}]`\n\n`use` names the offer{default}; the other settings are the offer's own.\n"
    if not offers:
        yield "Nothing that comes with Stepwell offers one.\n"
    for name in sorted(offers):
        kind = offers[name].config
        if dataclasses.fields(kind):
            yield f'### `use = "{name}"`\n\n{settings_table(kind)}\n'
        else:
            yield f'### `use = "{name}"`\n\nNo settings.\n'


def settings_table(kind: type) -> str:
    """A Markdown table of a settings dataclass, with what it inherits."""
    meanings = {name: what for base in reversed(kind.__mro__) for name, what in documented(base).items()}
    rows = ["| setting | type | default | meaning |", "|---|---|---|---|"]
    for field in dataclasses.fields(kind):
        default = "required" if _required(field) else _code(_default(field))
        rows.append(f"| `{field.name}` | {_code(_type(field.type))} | {default} | {_cell(meanings.get(field.name))} |")
    return "\n".join(rows)


def documented(kind: type) -> dict[str, str]:
    """The string under each field of a class, by the field's name."""
    if kind.__module__ == "builtins":
        return {}
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)
    return {name: what for name, _, what in _fields(body.body) if what}


def _required(field: dataclasses.Field[object]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _default(field: dataclasses.Field[object]) -> str:
    value = field.default if field.default is not dataclasses.MISSING else field.default_factory()  # type: ignore[misc]
    match value:
        case None:
            return "unset"
        case bool():
            return str(value).lower()
        case str():
            return f'"{value}"'
    return str(value)


def _type(kind: object) -> str:
    shown = str(getattr(kind, "__name__", kind)) if isinstance(kind, type) else str(kind)
    return shown.removesuffix(" | None").replace("typing.", "")


# --- hooks and contracts -----------------------------------------------------------------------------------------


def hooks() -> Iterator[str]:
    """Every hook with its signature and what it promises, in the order of the source."""
    yield f"# Hooks\n\n{text(hookspecs)}\n"
    for node in ast.parse(inspect.getsource(hookspecs)).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("stepwell_"):
            yield f"## `{node.name}`\n\n```text\n{_signature(node)}\n```\n\n{ast.get_docstring(node) or ''}\n"


def contracts() -> Iterator[str]:
    """Every role's module: its ABCs and the values they speak in."""
    yield (
        "# Contracts\n\nThe docstrings in `stepwell.abc` are the law; this page is made from them. "
        "A plugin imports all of these names from `stepwell`, or from the module named.\n"
    )
    for module in (*(f"abc.{role}" for role in CONTRACTS), *SPEAKING):
        tree = ast.parse(inspect.getsource(importlib.import_module(f"stepwell.{module}")))
        yield f"## `stepwell.{module}`\n\n{ast.get_docstring(tree) or ''}\n"
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield from contract(node)


def contract(node: ast.ClassDef) -> Iterator[str]:
    """One class: its docstring, its fields, its own public methods."""
    bases = ", ".join(ast.unparse(base) for base in node.bases if ast.unparse(base) not in ("ABC", "Generic[T]"))
    yield f"### `{node.name}`\n\n{f'*{bases}.* ' if bases else ''}{ast.get_docstring(node) or ''}\n"
    methods = [part for part in node.body if isinstance(part, ast.FunctionDef)]
    made = [part for method in methods if method.name == "__init__" for part in method.body]
    fields = [*_fields(node.body), *_fields(made)]
    if fields:
        rows = "\n".join(f"| `{name}` | {_code(shown)} | {_cell(what)} |" for name, shown, what in fields)
        yield f"| field | | meaning |\n|---|---|---|\n{rows}\n"
    abstract = any("abstractmethod" in ast.unparse(mark) for method in methods for mark in method.decorator_list)
    for method in methods:
        if not method.name.startswith("_"):
            must = any("abstractmethod" in ast.unparse(mark) for mark in method.decorator_list)
            mark = (" (must be written)" if must else " (has a default)") if abstract else ""
            yield f"- `{_signature(method)}`{mark}\n\n{textwrap.indent(ast.get_docstring(method) or '', '    ')}\n"


def _signature(node: ast.FunctionDef) -> str:
    arguments = ast.unparse(node.args)
    for first in ("self, ", "self", "cls, ", "cls"):
        if arguments.startswith(first):
            arguments = arguments.removeprefix(first)
            break
    called = "" if any(ast.unparse(mark) == "property" for mark in node.decorator_list) else f"({arguments})"
    answer = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"{node.name}{called}{answer}".replace("'", "")


def _fields(body: list[ast.stmt]) -> Iterator[tuple[str, str, str]]:
    """Name, type or value, and meaning of what a body declares or assigns."""
    for one, after in zip_longest(body, body[1:]):
        what = ""
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            what = " ".join(str(after.value.value).split())
        match one:
            case ast.AnnAssign(target=ast.Name(id=name)):
                value = f" = {ast.unparse(one.value)}" if one.value else ""
                yield name, f"{ast.unparse(one.annotation)}{value}", what
            case ast.Assign(targets=[ast.Name(id=name)]) if not name.startswith("_"):
                yield name, ast.unparse(one.value), what
            case ast.Assign(targets=[ast.Attribute(value=ast.Name(id="self"), attr=name)]) if what:
                yield name, "", what


# --- commands ----------------------------------------------------------------------------------------------------


def commands(registry: Registry) -> Iterator[str]:
    """Every command with its help: core's own, then those of plugins."""
    yield "# Commands\n"
    yield from command(root, "stepwell")
    offered, failed = registry.commands()
    benches, broken = registry.benches()
    assert not failed and not broken, (failed, broken)
    for record, one in sorted(offered, key=lambda pair: pair[1].name or ""):
        yield from command(one, f"stepwell {one.name}", f"Comes with `{record.distribution}`.\n\n")
    for record, one in sorted(benches, key=lambda pair: pair[1].name or ""):
        yield from command(one, f"stepwell bench {one.name}", f"Comes with `{record.distribution}`.\n\n")


def command(thing: click.Command, path: str, origin: str = "") -> Iterator[str]:
    """The help of a command, then of those below it."""
    context = click.Context(thing, info_name=path)
    yield f"## `{path}`\n\n{origin}```text\n{thing.get_help(context)}\n```\n"
    if isinstance(thing, click.Group):
        for name in thing.list_commands(context):
            below = thing.get_command(context, name)
            if below is not None:
                yield from command(below, f"{path} {name}")


# --- Markdown ----------------------------------------------------------------------------------------------------


def text(thing: object) -> str:
    """The docstring, flat."""
    return inspect.cleandoc(inspect.getdoc(thing) or "")


def _cell(words: str | None) -> str:
    return (words or "").replace("|", "\\|")


def _code(words: str) -> str:
    return f"`{_cell(words)}`" if words else ""


if __name__ == "__main__":
    main()
