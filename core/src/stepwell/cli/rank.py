"""`stepwell rank [CONFIG]`: one rank of an engine on another host, started by torchrun or the like."""

from __future__ import annotations

import contextlib
import logging
import os
from dataclasses import replace

import click

from stepwell.abc.runner import Runner
from stepwell.abc.storage import Storage
from stepwell.cli.options import read_config, set_option
from stepwell.config import environment, launched
from stepwell.engine.making import Place, make, make_storage
from stepwell.engine.ranks.door import check_alike, enter
from stepwell.engine.ranks.start import judge
from stepwell.engine.ranks.told import check_rank, door_port, host_of
from stepwell.engine.ranks.wire import Word
from stepwell.engine.ranks.worker import Rank
from stepwell.engine.spawned import complaint
from stepwell.errors import ConfigError
from stepwell.resolve import resolve


@click.command("rank")
@click.argument("path", metavar="[CONFIG]", required=False)
@set_option
def command(path: str | None, sets: tuple[str, ...]) -> None:
    """Be one rank of the engine that runs at MASTER_ADDR, with the same CONFIG.

    RANK and MASTER_ADDR say which and where; torchrun and others set them. Rank 0 is the engine's own.
    """
    config = read_config(path, sets)
    resolved = resolve(config, config.load_plugins())
    ranks, choice, told = resolved.ranks, resolved.chosen["runner"], launched(environment())
    if ranks.launcher != "external":
        raise ConfigError("stepwell rank is for ranks.launcher = 'external'; with 'own' the engine starts its ranks")
    judge(choice, ranks)
    number, host, port = check_rank(ranks, told), host_of(ranks, told), door_port(ranks, told)
    click.echo(f"rank {number} waits for the engine at {host}", err=True)
    stream, joined = enter(host, port, number, os.getpid(), ranks)
    check_alike(choice, joined)
    logging.basicConfig(level=logging.INFO)
    device = getattr(choice.settings, "device", "cpu")
    if device in ("auto", "cuda"):
        device = f"cuda:{told.local_rank or 0}"
    folder = resolved.engine.state_dir
    place = Place(
        choice.offer.name,
        device,
        lambda: folder or config.cache_dir,
        rank=number,
        world=joined.world,
        meet=joined.meet,
    )

    def storage(use: bytes) -> Storage:
        """That of this config, which has to be the engine's."""
        chosen = resolved.chosen.get("storage")
        here = "" if chosen is None else chosen.offer.name
        if chosen is None or here != use.decode():
            raise ConfigError(f"storage.use is {use.decode()!r} at the engine and {here!r} here: give both one config")
        return make_storage(chosen, replace(place, name=here), resolved.tiers)

    try:
        rank = Rank(stream, number, joined.world, storage)
        rank.live()
        rank.serve(make(choice, Runner, place))  # type: ignore[type-abstract]
    except (EOFError, BrokenPipeError, ConnectionResetError):
        raise ConfigError("the engine ended") from None
    except BaseException as error:
        with contextlib.suppress(OSError):
            stream.say(Word.FAILED, complaint(error))
        raise
