"""Settings as `stepwell config show` and the startup summary print them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stepwell.coerce import Secret, Text, discreet
from stepwell.offers import Part, vars_of
from stepwell.sources import At, FromEnv, Origin, Settings

SECRET = re.compile(r"(.*_)?(keys?|token|secrets?|passwords?|passphrase|credentials?)")
HIDDEN = "'***'"
UNSET = "(not set)"


@dataclass(frozen=True, slots=True)
class Shown:
    """One line of `stepwell config show`."""

    section: str
    key: str
    value: str
    origin: str


def shown_section(section: str, written: Settings, bound: Sequence[object], default: Origin) -> list[Shown]:
    """Of a section that was bound every field, else what was written.

    A table or a secret is shown as it was written; anything else as the value in effect. Of a section that was not
    bound nothing says what is secret, so a text whose key sounds like one is hidden.
    """
    values = {at: value for one in bound for at, value in _in_effect(one)}
    lines = []
    for at, one in sorted(written.items()):
        in_effect = at in values and not isinstance(one.value, FromEnv)
        value = values[at] if in_effect else one.value
        text = HIDDEN if not in_effect and _sounds_secret(at, value) else printed(value)
        lines.append(Shown(section, ".".join(at), text, str(one.origin)))
    mentioned = {at[:depth] for at in written for depth in range(1, len(at) + 1)}
    unsaid = [(at, value) for at, value in values.items() if at not in mentioned]
    return lines + [Shown(section, ".".join(at), printed(value), str(default)) for at, value in unsaid]


def _in_effect(settings: object, above: At = ()) -> Iterator[tuple[At, object]]:
    """Every field with its value; of a part, those of its own settings."""
    for name, value in vars_of(settings).items():
        if isinstance(value, Part):
            yield from _in_effect(value.settings, (*above, name))
        elif isinstance(value, Mapping) and any(isinstance(one, Secret) for one in value.values()):
            for key, one in value.items():
                yield (*above, name, key), one
        else:
            yield (*above, name), value


def _sounds_secret(at: Sequence[str], value: object) -> bool:
    return isinstance(value, str) and any(SECRET.fullmatch(part.lower()) for part in at)


def printed(value: object) -> str:
    """A value much as TOML would have it."""
    match value:
        case None:
            return UNSET
        case Secret() if not value:
            return UNSET
        case bool():
            return str(value).lower()
        case FromEnv():
            return str(value)
        case Text() if type(value) is Text:
            return discreet(value)
        case Path():
            return repr(str(value))
    return discreet(repr(value))
