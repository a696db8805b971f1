"""`stepwell mooncake segment`: lend this machine's memory to a store."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Literal

import click

from stepwell import ConfigError
from stepwell_mooncake.config import MooncakeConfig
from stepwell_mooncake.wheel import missing


@click.command()
@click.option("--master", required=True, metavar="HOST:PORT", help="The master of the store.")
@click.option("--gib", type=click.FloatRange(0.004), required=True, help="Memory that is lent, in GiB.")
@click.option("--hostname", default="127.0.0.1", show_default=True, help="Under which others reach this machine.")
@click.option("--protocol", type=click.Choice(["tcp", "rdma"]), default="tcp", show_default=True)
@click.option("--device", default="", help="RDMA devices, such as mlx5_0,mlx5_1.")
@click.option("--offload", type=click.Path(path_type=Path), help="A folder to which what does not fit is written.")
def segment(
    master: str, gib: float, hostname: str, protocol: Literal["tcp", "rdma"], device: str, offload: Path | None
) -> None:
    """Lend memory to a Mooncake store, until a signal ends it.

    Pages that lie in it stay while engines come and go. Mooncake's clients listen on every address of the machine:
    let nobody reach it whom you do not trust.
    """
    why = missing()
    if why is not None:
        raise ConfigError(why)
    try:
        config = MooncakeConfig(
            master, segment_gib=gib, hostname=hostname, protocol=protocol, device=device, offload=offload
        )
    except ValueError as error:
        raise ConfigError("--" + str(error).replace("segment_gib", "gib", 1)) from None
    from stepwell_mooncake.client import connect

    store = connect(config, 0)
    click.echo(f"lending {gib:g} GiB to the store of {master}; Ctrl-C ends it")
    ended = threading.Event()
    for which in (signal.SIGINT, signal.SIGTERM):
        signal.signal(which, lambda number, frame: ended.set())
    while not ended.wait(1.0):  # in pieces, so that signals are heard
        pass
    store.close()
