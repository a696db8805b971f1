"""`stepwell nixl peer`: lend this machine's memory to others."""

from __future__ import annotations

import asyncio

import click

from stepwell import ConfigError
from stepwell_nixl import client
from stepwell_nixl.config import devices_for


@click.command()
@click.option("--gib", type=click.FloatRange(0.004), required=True, help="Memory that is lent, in GiB.")
@click.option(
    "--listen",
    default="127.0.0.1:7601",
    show_default=True,
    metavar="HOST:PORT",
    help="Where to answer questions; port 0 takes a free one.",
)
@click.option(
    "--token-file", type=click.Path(exists=True, dir_okay=False), help="A file with the token that clients must send."
)
@click.option("--devices", default="", help="Network devices for UCX; by default the loopback's when listening there.")
@click.option("--ttl-h", type=click.FloatRange(0), default=0.0, help="Hours after which a page is forgotten; 0: never.")
def peer(gib: float, listen: str, token_file: str | None, devices: str, ttl_h: float) -> None:
    """Lend memory to storages of the kind `nixl-ucx`, until a signal ends it.

    Whoever can connect, and knows the token where there is one, can read and write all of that memory.
    """
    why = client.missing()
    if why is not None:
        raise ConfigError(why)
    host, _, port = listen.rpartition(":")
    if not host or not port.isdigit():
        raise ConfigError(f"--listen = {listen!r} must be HOST:PORT")
    token = ""
    if token_file is not None:
        with open(token_file, encoding="utf-8") as file:  # noqa: PTH123 - as click gives it
            token = file.read().strip()
    from stepwell_nixl.peer import GIB, run

    host = host.strip("[]")
    nbytes = int(gib * GIB) // 4096 * 4096
    asyncio.run(run(host, int(port), nbytes, token=token, devices=devices_for(host, devices), ttl_s=ttl_h * 3600))
