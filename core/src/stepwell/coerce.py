"""Reading a value as the type that a dataclass field declares.

Values from TOML have a type and must fit; text from a shell is read as the type wanted.
"""

from __future__ import annotations

import dataclasses
import math
import re
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from stepwell.offers import Part
from stepwell.suggest import meant

T = TypeVar("T")

TRUE = ("true", "yes", "on", "1")
FALSE = ("false", "no", "off", "0")
PASSWORD = re.compile(r"(://[^/@:\s]*):\S*@")


class Text(str):
    """Text from a shell, still to be read as whatever type is wanted."""

    __slots__ = ()


class Secret(Text):
    """Text that is never printed: its repr hides it, and so does that of everything that holds it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'"


def discreet(text: str) -> str:
    """Text as it may be told: without the password of an address in it."""
    return PASSWORD.sub(r"\1:***@", text)


class Misfit(Exception):
    """A value that cannot be taken: the keys that lead to it, and why (starting with `: ` or `; `).

    `instead`: what to write behind those keys, `.gold=4`, where that can be said.
    """

    def __init__(self, why: str, at: tuple[str, ...] = (), instead: str = "") -> None:
        super().__init__(why)
        self.why = why
        self.at = at
        self.instead = instead


def named(wanted: object) -> str:
    """A type as messages and tables show it."""
    if wanted is type(None) or wanted is None:
        return "None"
    if get_origin(wanted) is Literal:
        return " or ".join(repr(choice) for choice in get_args(wanted))
    if _is_union(wanted):
        return " | ".join(named(part) for part in get_args(wanted))
    if get_origin(wanted) is Annotated:
        return named(get_args(wanted)[0])
    if get_args(wanted):
        inside = ", ".join("..." if part is ... else named(part) for part in get_args(wanted))
        return f"{getattr(get_origin(wanted), '__name__', wanted)}[{inside}]"
    return getattr(wanted, "__name__", str(wanted))


def coerce(value: object, wanted: object) -> object:
    """`value` as `wanted`; Misfit where it cannot be."""
    kind = get_origin(wanted)
    if kind is Annotated:
        return coerce(value, get_args(wanted)[0])
    if _is_union(wanted):
        return _union(value, get_args(wanted), wanted)
    if kind is Literal:
        return _choice(value, get_args(wanted))
    if wanted in (object, Any):
        return _guessed(value)
    if isinstance(wanted, type) and dataclasses.is_dataclass(wanted):
        return build(wanted, _table(value, wanted))
    plain = kind or wanted
    if isinstance(plain, type):
        return _plain(value, wanted, plain)
    raise Misfit(f": settings cannot be of type {named(wanted)}")


def build(cls: type[T], table: Mapping[str, object]) -> T:
    """An instance of a dataclass from a table; unknown keys, wrong types and missing ones are Misfits."""
    hints = typing.get_type_hints(cls, include_extras=True)
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}  # type: ignore[arg-type]
    values = {}
    for name, value in table.items():
        if name not in fields:
            raise Misfit(f": no such setting{meant(name, fields)}", (name,))
        values[name] = _inside(name, value, hints[name])
    for name, field in fields.items():
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and name not in values:
            raise Misfit(" is required and not set", (name,))
    try:
        return cls(**values)
    except ValueError as error:
        # A dataclass that checks itself says `field: why`.
        head, colon, rest = str(error).partition(": ")
        raise (Misfit(f": {rest}", (head,)) if colon and head in fields else Misfit(f": {error}")) from error


@dataclasses.dataclass(frozen=True, slots=True)
class Piece:
    """A field that is a piece of its own, or may be."""

    role: object
    """What the piece is."""
    words: tuple[str, ...] | None
    """What may be said instead of an offer's name; None: it has to be one."""


def parts_of(cls: type) -> dict[str, Piece]:
    """The fields of a dataclass that are pieces chosen by name: by a `use` of their own, or beside some words."""
    pieces = {}
    for name, wanted in typing.get_type_hints(cls).items():
        choices = get_args(wanted) if _is_union(wanted) else (wanted,)
        for part in choices:
            if get_origin(part) is Part:
                words = [word for one in choices if get_origin(one) is Literal for word in get_args(one)]
                pieces[name] = Piece(get_args(part)[0], tuple(words) if _is_union(wanted) else None)
    return pieces


def guess(value: str) -> object:
    """Text as TOML would read it, else as it is."""
    try:
        return tomllib.loads(f"value = {value}")["value"]
    except (ValueError, RecursionError):
        return str(value)


def _guessed(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _guessed(one) for key, one in value.items()}
    return guess(value) if type(value) is Text else value


def _inside(name: str, value: object, wanted: object) -> object:
    try:
        return coerce(value, wanted)
    except Misfit as why:
        why.at = (name, *why.at)
        raise


def _misfit(value: object, wanted: object) -> Misfit:
    return Misfit(f": {discreet(repr(value))} is not of type {named(wanted)}")


def _is_union(wanted: object) -> bool:
    return get_origin(wanted) in (Union, types.UnionType)


def _union(value: object, parts: Sequence[object], wanted: object) -> object:
    if type(None) in parts and (value is None or (isinstance(value, Text) and value in ("", "none", "None"))):
        return None
    # Text fits anything, so it comes last: `int | str` reads 5 as a number.
    for part in sorted((part for part in parts if part is not type(None)), key=lambda part: part in (str, Path)):
        try:
            return coerce(value, part)
        except Misfit as why:
            if why.at or (sum(part is not type(None) for part in parts) == 1 and "is not of type" not in why.why):
                raise
    raise _misfit(value, wanted)


def _choice(value: object, choices: Sequence[object]) -> object:
    for choice in choices:
        if (choice == value and type(choice) is type(value)) or (isinstance(value, Text) and str(choice) == value):
            return choice
    raise Misfit(f": {discreet(repr(value))} is not one of {', '.join(str(choice) for choice in choices)}")


def _table(value: object, wanted: object) -> Mapping[str, object]:
    if isinstance(value, Mapping):
        return value
    raise _misfit(value, wanted)


def _plain(value: object, wanted: object, kind: type) -> object:
    if issubclass(kind, Enum):
        return kind(_choice(value, [member.value for member in kind]))
    if issubclass(kind, Mapping):
        inner = (get_args(wanted) or (str, object))[1]
        if not isinstance(value, Mapping):
            raise Misfit(_misfit(value, wanted).why, instead=_entry(value))
        return {str(key): _inside(str(key), one, inner) for key, one in value.items()}
    if (kind is not str and issubclass(kind, (list, tuple, set, frozenset))) or kind is Sequence:
        return _many(value, wanted, kind)
    if kind is bool:
        return _bool(value, wanted)
    if kind in (int, float):
        return _number(value, wanted, kind)
    if isinstance(value, str) and issubclass(kind, Secret):
        return Secret(value)
    if isinstance(value, str) and kind is str:
        return str(value) if type(value) is Text else value
    if isinstance(value, (str, Path)) and issubclass(kind, Path):
        return _path(value)
    if isinstance(value, kind) and not isinstance(value, Text):
        return value
    raise _misfit(value, wanted)


def _entry(value: object) -> str:
    """How the first entry of a table is written that somebody tried to give whole: `.gold=4`."""
    table = guess(value) if isinstance(value, Text) and not isinstance(value, Secret) else None
    if isinstance(table, dict) and table:
        name, entry = next(iter(table.items()))
        return f".{name}={discreet(str(entry))}"
    return ".NAME=VALUE"


def _bool(value: object, wanted: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, Text) and value.lower() in TRUE + FALSE:
        return value.lower() in TRUE
    raise _misfit(value, wanted)


def _path(value: str | Path) -> Path:
    if value == "":
        raise Misfit(": is empty; name a file or folder")
    if "\0" in str(value):
        raise Misfit(f": {str(value)!r} has a NUL in it, which no file or folder has")
    try:
        return Path(value).expanduser()
    except RuntimeError:
        raise Misfit(f": {str(value)!r} begins with a user who has no home folder here") from None


def _number(value: object, wanted: object, kind: type) -> object:
    if isinstance(value, Text):
        try:
            value = kind(value)
        except ValueError:
            raise _misfit(value, wanted) from None
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise Misfit(": is larger than any float") from None
    if type(value) is not kind or (isinstance(value, float) and math.isnan(value)):
        raise _misfit(value, wanted)
    return value


def _many(value: object, wanted: object, kind: type) -> object:
    if isinstance(value, Text):
        value = guess(value) if value.startswith("[") else [Text(p.strip()) for p in value.split(",") if p.strip()]
    if not isinstance(value, (list, tuple)):
        raise _misfit(value, wanted)
    inner = [part for part in get_args(wanted) if part is not ...] or [object]
    if kind is tuple and get_args(wanted) and ... not in get_args(wanted):
        if len(inner) != len(value):
            raise Misfit(f": {discreet(repr(value))} has {len(value)} entries, not {len(inner)}")
    else:
        inner = inner[:1] * len(value)
    items = [coerce(one, part) for one, part in zip(value, inner, strict=True)]
    return items if kind is list else frozenset(items) if kind in (set, frozenset) else tuple(items)
