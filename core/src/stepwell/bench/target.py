"""The storage that a bench measures: chosen as any command chooses it, but with files in a folder of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path

from stepwell.abc.storage import Storage
from stepwell.assemble import Place, make
from stepwell.cache.arena import Arena
from stepwell.cli.options import read_config
from stepwell.cli.storage_open import Store, chosen
from stepwell.config import Chosen
from stepwell.errors import ConfigError
from stepwell.offers import Native


@dataclass(frozen=True, slots=True)
class Target:
    """The storage to measure, as the command line names it."""

    backend: str | None
    config: str | None
    sets: Sequence[str]

    def choose(self, folder: Path) -> tuple[Chosen, bool]:
        """The storage with its settings, and whether it keeps files: then in `folder`, whatever `storage.path` says.

        There are backends that take a path, and will not have one with their other settings as they are.
        """
        if not self._takes_path():
            return self._chosen(), False
        try:
            return chosen(self.backend, self.config, self.sets, {"storage.path": str(folder)})[1], True
        except ConfigError as error:
            try:
                return self._chosen(), False
            except ConfigError:
                raise error from None

    def folder(self) -> Path | None:
        """The folder of the config, below which there may be another for the bench."""
        if not self._takes_path():
            return None
        try:
            found = getattr(self._chosen().settings, "path", None)
        except ConfigError:
            return None
        return found if isinstance(found, Path) else None

    def _chosen(self) -> Chosen:
        return chosen(self.backend, self.config, self.sets)[1]

    def _takes_path(self) -> bool:
        config = read_config(self.config, self.sets, {"storage.use": self.backend} if self.backend else {})
        offer = config.load_plugins().offers("storage").get(config.use("storage", ""))
        return offer is not None and any(field.name == "path" for field in fields(offer.config))


@contextmanager
def made(choice: Chosen, folder: Path, arena: Arena) -> Iterator[Store]:
    """The storage, attached, for as long as it is measured."""
    store = Store(choice, make(choice, Storage, _place(choice, folder)))  # type: ignore[type-abstract]
    try:
        store.attach(arena)
        yield store
    finally:
        store.close()


def native(choice: Chosen, folder: Path, arena: Arena) -> Native:
    """The client library of the storage's plugin."""
    assert choice.offer.native is not None
    with arena.lending_name():
        return choice.offer.native(choice.settings, _place(choice, folder), arena)


def _place(choice: Chosen, folder: Path) -> Place:
    return Place(choice.offer.name, "cpu", lambda: folder)
