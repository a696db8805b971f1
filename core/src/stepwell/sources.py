"""Where settings come from: a TOML file, the environment, `--set`, and arguments; flat, each with its origin.

Flat means that `[cache.groups.swa] device_pages = 8` is one entry under ("cache", "groups", "swa", "device_pages"),
so that every source can change any single value.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stepwell.coerce import Text
from stepwell.errors import ConfigError

PREFIX = "STEPWELL_"
DISABLE = "STEPWELL_DISABLE"
PLUGINS = "STEPWELL_PLUGINS"

At = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value was written, as messages say it: `site.toml:3`, `$STEPWELL_EVICT__USE`, `--set evict.use`."""

    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class FromEnv:
    """A secret by reference: `{ env = "NAME" }`."""

    name: str

    def __str__(self) -> str:
        return f'{{ env = "{self.name}" }}'


@dataclass(frozen=True, slots=True)
class Setting:
    """One value as it was written."""

    value: object
    origin: Origin


Settings = dict[At, Setting]


def merge(into: Settings, more: Settings) -> None:
    """Let `more` win over `into`; a table and a single value at the same place replace each other."""
    for at in more:
        for old in [old for old in into if old[: len(at)] == at or at[: len(old)] == old]:
            del into[old]
    into.update(more)


def from_toml(path: Path) -> tuple[Settings, dict[str, Origin]]:
    """What a file sets, and where each of its sections begins."""
    text = _read(path)
    try:
        table = tomllib.loads(text)
    except ValueError as error:  # more than bad syntax: a number may have too many digits
        raise ConfigError(_located(path, text, str(error))) from error
    except RecursionError:
        raise ConfigError(f"{path}: is nested too deeply") from None
    lines = _lines(text)
    sections: dict[str, Origin] = {}
    for name, value in table.items():
        sections[name] = Origin(f"{path}:{lines.get((name,), _first(lines, name))}")
        if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
            raise ConfigError(f"{name} ({sections[name]}): write [{name}] once, not [[{name}]]")
        if not isinstance(value, dict):
            raise ConfigError(f"{name} ({sections[name]}): every setting lives in a section, such as [cache]")
    origin_of = {at: Origin(f"{path}:{line}") for at, line in lines.items()}
    return {at: Setting(value, _nearest(origin_of, at, path)) for at, value in flatten(table)}, sections


def from_environment(environment: Mapping[str, str], sections: Sequence[str]) -> Settings:
    """What `STEPWELL_SECTION__KEY` variables set."""
    found: Settings = {}
    for name, value in sorted(environment.items()):
        if not name.startswith(PREFIX) or name in (DISABLE, PLUGINS):
            continue
        at = tuple(name.removeprefix(PREFIX).lower().split("__"))
        if len(at) > 1 and all(at):
            found[at] = Setting(Text(value), Origin(f"${name}"))
            continue
        section, _, key = at[0].partition("_")
        if len(at) == 1 and section in sections and key:
            better = f"{PREFIX}{section.upper()}__{key.upper()}"
            raise ConfigError(f"${name}: a section and its key are joined by two underscores; did you mean {better}?")
    return found


def from_sets(sets: Sequence[str]) -> Settings:
    """What `--set section.key=value` options set; the last of several for one key wins."""
    found: Settings = {}
    for text in sets:
        name, equals, value = text.partition("=")
        at = tuple(part.strip() for part in name.split("."))
        if not equals or len(at) < 2 or not all(at):
            raise ConfigError(f"--set {text}: write it as section.key=value")
        merge(found, {at: Setting(Text(value), Origin(f"--set {'.'.join(at)}"))})
    return found


def from_arguments(values: Mapping[str, object]) -> Settings:
    """What a caller passes: nested tables, or dotted names."""
    origin = Origin("argument")
    found: Settings = {}
    for name, value in values.items():
        front = tuple(name.split("."))
        if len(front) < 2 and not isinstance(value, Mapping):
            raise ConfigError(f"{name} ({origin}): write it as section.key")
        inside = flatten(value) if isinstance(value, Mapping) else [((), value)]
        merge(found, {front + at: Setting(one, origin) for at, one in inside})
    return found


def flatten(table: Mapping[str, object]) -> Iterator[tuple[At, object]]:
    """Single values of nested tables; `{ env = "NAME" }` is one."""
    for name, value in table.items():
        if isinstance(value, Mapping):
            if set(value) == {"env"} and isinstance(value["env"], str):
                yield (name,), FromEnv(value["env"])
            else:
                yield from (((name, *at), one) for at, one in flatten(value))
        else:
            yield (name,), value


# --- files ---


def _read(path: Path) -> str:
    if path == Path():
        raise ConfigError("the path of the config file is empty; is the variable that holds it set?")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text (byte {error.start})") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot read this config file: {error.strerror}") from error


def _located(path: Path, text: str, message: str) -> str:
    match = re.fullmatch(r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)", message, re.DOTALL)
    if match is None:
        return f"{path}: {message}"
    where = f" (column {match[3]})" if match[3] else ""
    return f"{path}:{match[2] or len(text.splitlines())}: {match[1]}{where}"


_HEADER = re.compile(r"\s*\[\[?\s*([^\[\]]+?)\s*\]\]?\s*(?:#.*)?")
_KEY = re.compile(r"""\s*((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=""")


def _lines(text: str) -> dict[At, int]:
    """The line of each header and key. tomllib does not say; good enough for messages, not for parsing."""
    found: dict[At, int] = {}
    table: At = ()
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.fullmatch(line):
            table = _names(header[1])
            found.setdefault(table, number)
        elif key := _KEY.match(line):
            found.setdefault(table + _names(key[1]), number)
    return found


def _names(dotted: str) -> At:
    return tuple(part.strip().strip("\"'") for part in re.findall(r"""[^."']+|"[^"]*"|'[^']*'""", dotted))


def _first(lines: Mapping[At, int], name: str) -> int:
    return min((line for at, line in lines.items() if at[:1] == (name,)), default=1)


def _nearest(origin_of: Mapping[At, Origin], at: At, path: Path) -> Origin:
    """The line of a value, or of the inline table that holds it."""
    return next((origin_of[at[:n]] for n in range(len(at), 0, -1) if at[:n] in origin_of), Origin(str(path)))
