"""A config on its way to other machines: every value with its origin, secrets still as the names they were given by."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stepwell.config import Config, Origin, environment
from stepwell.settings import SECTIONS
from stepwell.sources import DISABLE, PLUGINS, Settings, from_environment, from_sets, from_toml, merge


@dataclass(frozen=True)
class Parcel:
    """Packed where the command runs, opened in every replica."""

    settings: Settings
    sections: dict[str, Origin]
    switches: dict[str, str]
    """Variables that say which plugins to load: replicas and ingresses must load the same."""
    folder: str
    """Where relative paths begin."""

    @classmethod
    def pack(cls, path: Path | None, env: Mapping[str, str], sets: Sequence[str]) -> Parcel:
        """Everything that was set; `{ env = "NAME" }` is looked up where the parcel is opened."""
        settings, sections = from_toml(path) if path is not None else ({}, {})
        for source in (from_environment(env, SECTIONS), from_sets(sets)):
            merge(settings, source)
        for at, setting in settings.items():
            sections.setdefault(at[0], setting.origin)
        switches = {name: env[name] for name in (DISABLE, PLUGINS) if name in env}
        return cls(settings, sections, switches, str(Path.cwd()))

    def open(self) -> Config:
        """The config, in this process; its working directory becomes the one where it was packed, if that is here."""
        if Path(self.folder).is_dir():
            os.chdir(self.folder)
        here = {name: value for name, value in environment().items() if name not in (DISABLE, PLUGINS)}
        return Config(dict(self.settings), dict(self.sections), here | self.switches)
