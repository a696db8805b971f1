"""The route policies: where the least is left to compute, where the least is to do, in turn, or always the same."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from stepwell.abc.route import Replica, RoutePolicy
from stepwell.offers import Context, NoConfig
from stepwell.settings import at_least


@dataclass(frozen=True, slots=True)
class CacheAwareConfig:
    """The `[route]` table when `use = "cache-aware"`, which is the default."""

    running_tokens: int = 64
    """Prompt tokens that a request under way counts as: so much cached text draws requests to a replica that has one
    more of them than others. 0: only the cache and what waits count."""
    most_ahead: int = 32
    """Requests more than the least busy replica has, from which on a replica gets no further ones, whatever it has
    cached; so no prefix that all share draws everything to one."""

    def __post_init__(self) -> None:
        at_least("running_tokens", self.running_tokens, 0)
        at_least("most_ahead", self.most_ahead, 1)


class CacheAware(RoutePolicy):
    """The least expected work: what is not cached, what waits before it, and what runs beside it, in tokens.

    Among equals the fewest requests, then who was sent the fewest, so that replicas fill their caches evenly.
    """

    def __init__(self, config: CacheAwareConfig | None = None, context: Context | None = None) -> None:
        self._config = config or CacheAwareConfig()

    def choose(self, replicas: Sequence[Replica], length: int, routing_key: str | None) -> int:
        fewest = min(one.running for one in replicas)
        good = [at for at, one in enumerate(replicas) if one.running - fewest < self._config.most_ahead]
        return min(good, key=lambda at: (self._work(replicas[at], length), *_load(replicas[at])))

    def _work(self, one: Replica, length: int) -> int:
        return max(0, length - one.cached_tokens) + one.waiting_tokens + one.running * self._config.running_tokens


class LeastLoaded(RoutePolicy):
    """The fewest requests under way, then the fewest tokens that wait."""

    def __init__(self, config: NoConfig | None = None, context: Context | None = None) -> None:
        pass

    def choose(self, replicas: Sequence[Replica], length: int, routing_key: str | None) -> int:
        return min(
            range(len(replicas)), key=lambda at: (replicas[at].running, replicas[at].waiting_tokens, replicas[at].sent)
        )


class RoundRobin(RoutePolicy):
    """In turn: whoever was sent the fewest so far."""

    def __init__(self, config: NoConfig | None = None, context: Context | None = None) -> None:
        pass

    def choose(self, replicas: Sequence[Replica], length: int, routing_key: str | None) -> int:
        return min(range(len(replicas)), key=lambda at: replicas[at].sent)


class Sticky(RoutePolicy):
    """Requests of one routing key always to the same replica, by rendezvous hashing over the replicas' names.

    Where a replica goes, only its own keys move; where it comes back, they return. Who has no key goes where the fewest
    requests are.
    """

    def __init__(self, config: NoConfig | None = None, context: Context | None = None) -> None:
        pass

    def choose(self, replicas: Sequence[Replica], length: int, routing_key: str | None) -> int:
        if routing_key is None:
            return min(range(len(replicas)), key=lambda at: _load(replicas[at]))
        return max(range(len(replicas)), key=lambda at: (_score(replicas[at].name, routing_key), replicas[at].name))


def _load(one: Replica) -> tuple[int, int]:
    return one.running, one.sent


def _score(name: str, key: str) -> bytes:
    """Evenly distributed, and the same in every process. The name is framed, so that no two pairs run together."""
    return hashlib.blake2b(f"{len(name)}:{name}{key}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
