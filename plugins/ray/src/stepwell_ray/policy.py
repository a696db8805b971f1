"""The route policy that a config chooses."""

# mypy: disable-error-code="type-abstract"
# Contracts are asked for by their abstract class and only ever compared with it.

from __future__ import annotations

from stepwell.abc.route import RoutePolicy
from stepwell.assemble import Place, make
from stepwell.config import Chosen, Config
from stepwell.plugins import Registry

DEFAULT = "cache-aware"


def chosen(config: Config, registry: Registry) -> Chosen:
    """What `[route] use` says. Raises ConfigError."""
    return config.choose("route", "route", registry, DEFAULT)


def policy(choice: Chosen, config: Config) -> RoutePolicy:
    """Made anew in each ingress."""
    return make(choice, RoutePolicy, Place(choice.offer.name, "cpu", lambda: config.cache_dir))
