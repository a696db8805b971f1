"""What became of one installed plugin."""

from __future__ import annotations

from dataclasses import dataclass

OK = "ok"
DISABLED = "disabled"
"""Switched off by name; never imported."""
INCOMPATIBLE = "incompatible"
"""Written for another major of the API, or for another release of Stepwell; never imported."""
BROKEN = "broken"
"""Raised, or something that it requires is not installed."""
INVALID = "invalid"
"""Imported, but what it registers breaks the rules."""
CONFLICT = "conflict"
"""Takes a name that another plugin has."""
UNUSABLE = "unusable"
"""Fine, but nothing that it offers can run on this machine."""
MISSING = "missing"
"""Somebody names it; it is not installed."""

LOADED = (OK, UNUSABLE)
"""States of a plugin whose hooks are called."""
FAILED = (BROKEN, INVALID, CONFLICT, INCOMPATIBLE)
"""States that somebody should mend."""


@dataclass(frozen=True, slots=True)
class Record:
    """One line of `stepwell plugins`."""

    name: str
    distribution: str
    version: str
    state: str
    reason: str = ""
    offers: tuple[str, ...] = ()
    """What it offers, or would, as `kind:name`, sorted."""
    traceback: str = ""

    @property
    def label(self) -> str:
        """How messages call it: `nixl (stepwell-nixl 9.9)`."""
        origin = f"{self.distribution} {self.version}".strip()
        return f"{self.name} ({origin})" if origin else self.name

    @property
    def loaded(self) -> bool:
        """Whether its hooks are called."""
        return self.state in LOADED

    @property
    def sentence(self) -> str:
        """`plugin nixl (stepwell-nixl 9.9) is broken: why`."""
        what = "conflicts" if self.state == CONFLICT else f"is {self.state}"
        return f"plugin {self.label} {what}" + (f": {self.reason}" if self.reason else "")
