"""What the launcher of ranks on several hosts says, held against the config: each mistake in one sentence."""

from __future__ import annotations

from stepwell.config import Launched
from stepwell.errors import ConfigError
from stepwell.settings import RankSettings

EVERYWHERE = ("0.0.0.0", "::", "")
"""Addresses to listen at that nobody can be sent to."""
PORTS = 2**16


def check_engine(ranks: RankSettings, told: Launched) -> None:
    """ConfigError where a launcher made an engine of a rank, or starts as many as the config does not say."""
    if told.rank:
        raise ConfigError(f"$RANK is {told.rank}, and an engine is rank 0: start `stepwell rank` for the others")
    _check_world(ranks, told)


def check_rank(ranks: RankSettings, told: Launched) -> int:
    """Which rank this is. ConfigError where that is none, or the engine's own."""
    if not told.rank:
        raise ConfigError("$RANK has to say which rank this is, from 1 on: rank 0 is started by the engine")
    _check_world(ranks, told)
    if told.rank >= ranks.tp:
        raise ConfigError(f"$RANK is {told.rank}, and the last of ranks.tp = {ranks.tp} ranks is {ranks.tp - 1}")
    return told.rank


def door_port(ranks: RankSettings, told: Launched) -> int:
    """The port of the engine. ConfigError where nothing says it."""
    if ranks.port:
        return ranks.port
    if told.port is None:
        raise ConfigError("ranks.port is not set, and neither is $MASTER_PORT to take the next of")
    if not 0 < told.port + 1 < PORTS:
        raise ConfigError(f"$MASTER_PORT is {told.port}, after which there is no port: set ranks.port")
    return told.port + 1


def host_of(ranks: RankSettings, told: Launched) -> str:
    """The engine's host, as ranks reach it. ConfigError where nothing says it."""
    if not told.address and ranks.listen in EVERYWHERE:
        raise ConfigError(
            f"ranks.listen = {ranks.listen!r} is every address of a host and none to go to: set $MASTER_ADDR"
        )
    return told.address or ranks.listen


def _check_world(ranks: RankSettings, told: Launched) -> None:
    if told.world is not None and told.world != ranks.tp:
        raise ConfigError(f"$WORLD_SIZE is {told.world} and ranks.tp = {ranks.tp}: make them the same")
