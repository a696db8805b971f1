"""Settings as `stepwell config show` and the startup summary print them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from stepwell.coerce import Text
from stepwell.sources import FromEnv, Origin, Settings


@dataclass(frozen=True, slots=True)
class Shown:
    """One line of `stepwell config show`."""

    section: str
    key: str
    value: str
    origin: str


def shown_section(section: str, written: Settings, bound: Sequence[object], default: Origin) -> list[Shown]:
    """Of a section that was bound every field, else what was written.

    A table or a secret is shown as it was written; anything else as the value in effect.
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
        lines.append(Shown(section, ".".join(at), printed(value), str(one.origin)))
    tops = {at[0] for at in written}
    return lines + [Shown(section, key, printed(v), str(default)) for key, v in values.items() if key not in tops]


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
    return repr(value)
