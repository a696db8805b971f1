"""Every hook that a plugin may implement.

Registration hooks are called once per process, one plugin at a time, before the config is read; they import nothing
heavy and return offers. Raising makes the plugin a `broken` record and leaves all others alone. A name is taken once
across all plugins; a second one is a conflict that names both distributions. Since: API 1, all of them.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import click

from stepwell.abc.attend import PagedAttention
from stepwell.abc.balance import Balancer
from stepwell.abc.codec import Codec
from stepwell.abc.dispatch import Dispatcher
from stepwell.abc.evict import EvictionPolicy
from stepwell.abc.prefetch import PrefetchPolicy
from stepwell.abc.retain import RetentionPolicy
from stepwell.abc.route import RoutePolicy
from stepwell.abc.runner import Runner
from stepwell.abc.schedule import SchedulePolicy
from stepwell.abc.sink import Event, Sink
from stepwell.abc.storage import Storage
from stepwell.abc.write import WritePolicy
from stepwell.markers import hookspec
from stepwell.offers import Check, Offer

if TYPE_CHECKING:
    from stepwell.plugins import Plan


@hookspec
def stepwell_storages() -> Iterable[Offer[Storage]]:
    """Offer storage backends (L3), chosen by `[storage] use`."""
    return ()


@hookspec
def stepwell_evictors() -> Iterable[Offer[EvictionPolicy]]:
    """Offer eviction policies, chosen by `[evict] use`; one instance is made for each group and tier."""
    return ()


@hookspec
def stepwell_writers() -> Iterable[Offer[WritePolicy]]:
    """Offer write policies, chosen by `[write] use`."""
    return ()


@hookspec
def stepwell_prefetchers() -> Iterable[Offer[PrefetchPolicy]]:
    """Offer prefetch policies, chosen by `[prefetch] use`."""
    return ()


@hookspec
def stepwell_retainers() -> Iterable[Offer[RetentionPolicy]]:
    """Offer retention policies, chosen by `[retain] use`."""
    return ()


@hookspec
def stepwell_schedulers() -> Iterable[Offer[SchedulePolicy]]:
    """Offer schedule policies, chosen by `[schedule] use`."""
    return ()


@hookspec
def stepwell_routers() -> Iterable[Offer[RoutePolicy]]:
    """Offer route policies, chosen by `[route] use`."""
    return ()


@hookspec
def stepwell_runners() -> Iterable[Offer[Runner]]:
    """Offer runners, chosen by `[runner] use`."""
    return ()


@hookspec
def stepwell_codecs() -> Iterable[Offer[Codec]]:
    """Offer the tokenizer of a runner: under the same name, and made with the same settings, as the runner."""
    return ()


@hookspec
def stepwell_attentions() -> Iterable[Offer[PagedAttention[object]]]:
    """Offer attention over pages, chosen by a setting of the runner, such as `[runner] attention`."""
    return ()


@hookspec
def stepwell_dispatchers() -> Iterable[Offer[Dispatcher[object]]]:
    """Offer dispatch backends, chosen by a setting of the runner, such as `[runner] dispatch`."""
    return ()


@hookspec
def stepwell_balancers() -> Iterable[Offer[Balancer]]:
    """Offer expert balancers, chosen by a setting of the runner, such as `[runner] balance`."""
    return ()


@hookspec
def stepwell_sinks() -> Iterable[Offer[Sink]]:
    """Offer event sinks, chosen by `[sink] use`."""
    return ()


@hookspec
def stepwell_sections() -> Mapping[str, type]:
    """Name the sections of the config that this plugin binds itself, each with its frozen dataclass.

    So a mistake in them is found by every command that reads the config, and `config show` knows their defaults.
    """
    return {}


@hookspec
def stepwell_commands() -> Iterable[click.Command]:
    """Offer commands; called only when core lacks the command typed.

    They appear as `stepwell PLUGIN COMMAND`. Stepwell's own distributions may offer root commands.
    """
    return ()


@hookspec
def stepwell_benches() -> Iterable[click.Command]:
    """Offer measurements; called only by `stepwell bench`, for a name that core lacks, and by `stepwell bench more`.

    They appear as `stepwell bench NAME`. Two plugins that offer one name hide it from both.
    """
    return ()


@hookspec
def stepwell_checks() -> Iterable[Check]:
    """Offer checks; called only by `stepwell doctor`."""
    return ()


@hookspec
def stepwell_assembled(plan: "Plan") -> None:
    """All parts are built, none runs yet. Called once; raising vetoes the start with the raised message."""


@hookspec
def stepwell_events(batch: Sequence[Event]) -> None:
    """KV events since the last call. Called at most once a second, off the serving thread; raising is counted."""


@hookspec
def stepwell_stopping(why: str) -> None:
    """The engine stops. Called once; raising is counted."""
