"""The storage that a config asks for: opened for one command, and closed whatever becomes of it.

Every fault of the backend is one sentence that names it. A command line has no serving thread, so a backend that core
would give a process of its own is made in this one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from stepwell.abc.storage import Storage
from stepwell.assemble import Place, make
from stepwell.cache.arena import BLOCK, TRAILER_BYTES, Arena
from stepwell.cli.options import config_options, read_config
from stepwell.config import Chosen, Config
from stepwell.engine.parts import attach_storage
from stepwell.errors import ConfigError, PluginError, StepwellError
from stepwell.offers import Capability, Part, vars_of
from stepwell.settings import EngineSettings
from stepwell.types import Full, GroupSpec, PageKey, PageResult, PageViews, StoredPage

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
KEYS_A_CALL = 4096


class Store:
    """A storage, under the name that the config has for it: what its calls raise becomes an error that says it."""

    def __init__(self, choice: Chosen, storage: Storage) -> None:
        self.name = f"storage {choice.offer.name!r}"
        self.deletes = Capability.DELETES in choice.provides
        """Whether a deleted page is gone at once; of other storages it is a wish."""
        self.stuck = False
        """Whether a call has not returned: then nothing may be closed, since it may still use everything."""
        self._storage = storage

    @property
    def package(self) -> str:
        """The package that its code is in."""
        return type(self._storage).__module__.partition(".")[0]

    def attach(self, arena: Arena) -> None:
        """Before anything else."""
        attach_storage(self._storage, arena)

    def pages(self) -> Iterator[Sequence[StoredPage]]:
        """All pages, in batches."""
        with self._blamed("scan"):
            yield from self._storage.scan()

    def contains(self, keys: Sequence[PageKey]) -> Sequence[bool]:
        """For each key whether it is there."""
        with self._blamed("contains"):
            return self._each(keys, self._storage.contains(keys))

    def read(self, keys: Sequence[PageKey], into: PageViews) -> Sequence[PageResult]:
        """As `Storage.read`."""
        with self._blamed("read"):
            return self._each(keys, self._storage.read(keys, into))

    def write(self, keys: Sequence[PageKey], pages: PageViews) -> Sequence[PageResult]:
        """As `Storage.write`."""
        with self._blamed("write"):
            return self._each(keys, self._storage.write(keys, pages))

    def delete(self, keys: Sequence[PageKey]) -> None:
        """Forget these keys."""
        with self._blamed("delete"):
            for at in range(0, len(keys), KEYS_A_CALL):
                self._storage.delete(keys[at : at + KEYS_A_CALL])

    def close(self) -> None:
        """The last call. What fails in it is said, and changes nothing of what came before."""
        try:
            with self._blamed("close"):
                self._storage.close()
        except StepwellError as error:
            click.echo(f"note: {error}", err=True)

    def _each(self, keys: Sequence[PageKey], answers: Sequence[T]) -> Sequence[T]:
        if len(answers) != len(keys):
            raise PluginError(f"{self.name}: {len(keys)} keys got {len(answers)} answers")
        return answers

    @contextmanager
    def _blamed(self, call: str) -> Iterator[None]:
        try:
            yield
        except StepwellError:
            raise
        except NotImplementedError as error:
            raise ConfigError(f"{self.name}: {error}") from error
        except Exception as error:
            raise PluginError(f"{self.name}: {call}: {type(error).__name__}: {error}") from error


def storage_options(command: F) -> F:
    """Add `--backend NAME` (argument `backend`), `--config PATH` (`path`) and `--set` (`sets`)."""
    return click.option(
        "--backend", metavar="NAME", help="The storage, as in `[storage] use`; unset: that of the config."
    )(config_options(command))


def chosen(
    backend: str | None, path: str | None, sets: Sequence[str], extra: Mapping[str, object] | None = None
) -> tuple[Config, Chosen]:
    """A config and the storage that it uses. ConfigError where it uses none, and for whatever nothing knows."""
    config = read_config(path, sets, {**({"storage.use": backend} if backend else {}), **(extra or {})})
    registry = config.load_plugins()
    choice = config.choose("storage", "storage", registry)
    if choice is None:
        have = ", ".join(registry.offers("storage"))
        raise ConfigError(f"no storage is named: give --backend or a --config that has [storage]; have {have}")
    config.finish(registry)
    return config, choice


@contextmanager
def opened(
    backend: str | None,
    path: str | None,
    sets: Sequence[str],
    *,
    lists: str = "",
    regions: int = 1,
    region_bytes: int = BLOCK,
) -> Iterator[tuple[Store, Arena]]:
    """The storage, attached to an arena of so many regions. `lists`: what it has to be able to list its pages for."""
    config, choice = chosen(backend, path, sets)
    _there(choice.settings, choice.section)
    if lists and Capability.LISTS not in choice.provides:
        what = f"storage.use = {choice.offer.name!r} ({choice.origin})"
        raise ConfigError(f"{what} cannot list its pages, and `stepwell storage {lists}` has to know them")
    state = config.bind("engine", EngineSettings).state_dir
    place = Place(choice.offer.name, "cpu", lambda: state or config.cache_dir)
    arena = room(choice, regions, region_bytes, "--memory-mib")
    store: Store | None = None
    try:
        store = Store(choice, make(choice, Storage, place))  # type: ignore[type-abstract]
        store.attach(arena)
        yield store, arena
    finally:
        if store is None or not store.stuck:
            if store is not None:
                store.close()
            arena.close()


def _there(settings: object, at: str) -> None:
    """ConfigError where a storage, or a part of one, is in a folder that does not exist: it would make a new one."""
    values = vars_of(settings) if is_dataclass(settings) else {}
    folder = values.get("path")
    if isinstance(folder, Path) and not folder.exists():
        raise ConfigError(f"{at}.path: there is no folder {folder}; name the one that the pages are in")
    for name, value in values.items():
        if isinstance(value, Part):
            _there(value.settings, f"{at}.{name}")


def room(choice: Chosen, regions: int, region_bytes: int, setting: str) -> Arena:
    """An arena of equal regions, as the storage needs it. ConfigError, naming `setting`, where memory does not do."""
    group = GroupSpec("pages", Full(), region_bytes - TRAILER_BYTES, (0,))
    named = Capability.NAMED_MEMORY in choice.provides
    return Arena.create([group], 1, [regions], setting=setting, named=named)
