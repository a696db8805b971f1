"""Settings as `stepwell config show` and the startup summary print them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stepwell.coerce import Text
from stepwell.sources import FromEnv, Origin, Settings

SECRET = re.compile(r"(.*_)?(key|token|secret|password|passphrase|credentials?)")
HIDDEN = "'***'"


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
    values = {
        field.name: getattr(value, field.name)
        for value in bound
        for field in dataclasses.fields(value)  # type: ignore[arg-type]
    }
    lines = []
    for at, one in sorted(written.items()):
        in_effect = len(at) == 1 and at[0] in values and not isinstance(one.value, FromEnv)
        value = values[at[0]] if in_effect else one.value
        text = HIDDEN if not in_effect and _sounds_secret(at, value) else printed(value)
        lines.append(Shown(section, ".".join(at), text, str(one.origin)))
    tops = {at[0] for at in written}
    return lines + [Shown(section, key, printed(v), str(default)) for key, v in values.items() if key not in tops]


def _sounds_secret(at: Sequence[str], value: object) -> bool:
    return isinstance(value, str) and any(SECRET.fullmatch(part.lower()) for part in at)


def printed(value: object) -> str:
    """A value much as TOML would have it."""
    match value:
        case None:
            return "(not set)"
        case bool():
            return str(value).lower()
        case FromEnv():
            return str(value)
        case Text() if type(value) is Text:
            return str(value)
        case Path():
            return repr(str(value))
    return repr(value)
