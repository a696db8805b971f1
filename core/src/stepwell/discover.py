"""Which plugins are installed, read from metadata alone: nothing is imported here."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterable
from dataclasses import dataclass

from stepwell.errors import PluginError
from stepwell.records import BROKEN, INCOMPATIBLE, Record
from stepwell.requires import normal, unmet

API = 1
CORE = "stepwell"
_FAMILY = re.compile(r"stepwell\.v(\d+)")


@dataclass(frozen=True, slots=True)
class Found:
    """One entry point of the group family `stepwell.v*`."""

    name: str
    module: str
    major: int
    distribution: str
    version: str
    summary: str
    requires: tuple[str, ...]

    @property
    def core(self) -> bool:
        """Whether it is Stepwell's own."""
        return self.distribution == CORE

    def record(self, state: str, reason: str = "", offers: tuple[str, ...] = (), traceback: str = "") -> Record:
        """What became of it."""
        return Record(self.name, self.distribution, self.version, state, reason, offers, traceback)


@dataclass(frozen=True, slots=True)
class Discovery:
    """Everything that was found: entry points sorted with core first then by name, and metadata that cannot be read."""

    found: tuple[Found, ...]
    unreadable: tuple[Record, ...]
    versions: dict[str, str]
    """Of the distributions looked at, by normal name."""

    def version_of(self, name: str) -> str | None:
        """The version of an installed distribution."""
        try:
            return self.versions.get(normal(name)) or importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            return None


def discover(distributions: Iterable[importlib.metadata.Distribution] | None = None) -> Discovery:
    """Find the plugins of `distributions`, by default of all that are installed; core is always among them."""
    found: list[Found] = []
    unreadable: list[Record] = []
    versions: dict[str, str] = {}
    for distribution in _all(distributions):
        try:
            entries = [entry for entry in distribution.entry_points if _FAMILY.fullmatch(entry.group)]
            # Parsing metadata is what discovery costs; of a hundred distributions few are plugins.
            if not entries and distributions is None:
                continue
            name = distribution.metadata["Name"]
            # The first on sys.path is the one that an import gets.
            if normal(name) in versions:
                continue
            versions[normal(name)] = distribution.version
            found += [_found(entry, distribution) for entry in entries]
        except Exception as error:
            unreadable.append(_unreadable(distribution, error))
    ours = {(entry.distribution, entry.name) for entry in found if entry.major == API}
    kept = [entry for entry in found if entry.major == API or (entry.distribution, entry.name) not in ours]
    kept.sort(key=lambda entry: (not entry.core, entry.name, entry.distribution, entry.major))
    return Discovery(tuple(kept), tuple(unreadable), versions)


def _all(distributions: Iterable[importlib.metadata.Distribution] | None) -> list[importlib.metadata.Distribution]:
    try:
        if distributions is None:
            return list(importlib.metadata.distributions())
        return [*distributions, importlib.metadata.distribution(CORE)]
    except Exception as error:
        raise PluginError(f"cannot list what is installed: {type(error).__name__}: {error}") from error


def _found(entry: importlib.metadata.EntryPoint, distribution: importlib.metadata.Distribution) -> Found:
    family = _FAMILY.fullmatch(entry.group)
    assert family is not None
    return Found(
        name=entry.name,
        module=entry.value.strip(),
        major=int(family[1]),
        distribution=distribution.metadata["Name"],
        version=distribution.version,
        summary=distribution.metadata["Summary"] or "",
        requires=tuple(distribution.requires or ()),
    )


def _unreadable(distribution: importlib.metadata.Distribution, error: Exception) -> Record:
    folder = str(distribution.locate_file(""))
    return Record("?", "", "", BROKEN, f"metadata of a distribution in {folder} cannot be read: {error}")


def refusal(entry: Found, discovery: Discovery) -> Record | None:
    """Why a plugin is not even imported, if so: another major, or something it requires is not there."""
    if entry.major != API:
        text = f"written for stepwell.v{entry.major}; this stepwell speaks stepwell.v{API}"
        return entry.record(INCOMPATIBLE, text)
    for wanted, have in unmet(entry.requires, discovery.version_of):
        if normal(re.split(r"[^\w.-]", wanted)[0]) == CORE:
            return entry.record(INCOMPATIBLE, f"requires {wanted}; this is stepwell {have}")
        there = f"{have} is installed" if have else "which is not installed"
        return entry.record(BROKEN, f"requires {wanted}, {there}")
    return None
