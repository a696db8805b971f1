"""The route policy that a config chooses, and what several engines need that one does not."""

# mypy: disable-error-code="type-abstract"
# Contracts are asked for by their abstract class and only ever compared with it.

from __future__ import annotations

from stepwell.abc.route import RoutePolicy
from stepwell.config import Chosen, Config
from stepwell.engine.making import Place, make
from stepwell.offers import Capability
from stepwell.plugins import Registry
from stepwell.settings import ROUTE


def chosen(config: Config, registry: Registry) -> Chosen:
    """What `[route] use` says. Raises ConfigError."""
    return config.choose("route", "route", registry, ROUTE)


def policy(choice: Chosen, config: Config) -> RoutePolicy:
    """Made anew in each front end. Raises PluginError."""
    return make(choice, RoutePolicy, Place(choice.offer.name, "cpu", lambda: config.cache_dir))


def check_shared(config: Config, storage: Chosen | None, many: str, remedy: str) -> None:
    """ConfigError for a storage that several engines cannot use at once. `many`: how many engines, in words."""
    if storage is not None and Capability.SHARED not in storage.provides:
        text = f"'{storage.offer.name}' is not shared, and there are {many}; use one that is, such as file or redis"
        raise config.error("storage", "use", f"{text}, or {remedy}")
