"""The launcher of `stepwell serve`: judges the config, holds the socket, keeps engine and front end running."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from stepwell.assemble import Assembly
from stepwell.config import Config, environment
from stepwell.engine.supervise import Child, Supervisor
from stepwell.process import FORMAT, engine_child, private_address
from stepwell_server.front import Plan
from stepwell_server.listen import exposed, listen, url
from stepwell_server.settings import ServerSettings

GRACE_S = 15.0
"""Beyond the engine's own time to drain: for saves, stores and the last answers."""


def launch(path: Path | None, sets: Sequence[str], extra: Mapping[str, object], console: Console) -> int:
    """Serve until told to stop, and answer the exit status. ConfigError: it cannot start; ChildFailed: it ended."""
    logging.basicConfig(level=logging.INFO, format=FORMAT, stream=sys.stderr)
    config = Config.load(path, environment(), sets, extra)
    settings = config.bind("server", ServerSettings)
    registry = config.load_plugins()
    assembly = Assembly(config, registry)
    log = logging.getLogger("stepwell.launch")
    for warning in registry.warnings():
        log.warning("%s", warning)
    with listen(config, settings) as listening, private_address() as address:
        where = url(listening)
        console.print(summary(config, where))
        if exposed(listening) and settings.api_key is None:
            log.warning("server.host = %r lets other machines in, and no server.api_key is set", settings.host)
        plan = Plan(address, listening.fileno(), None if path is None else str(path), list(sets), dict(extra))
        engine = {name: value for name, value in extra.items() if not name.startswith("server.")}
        children = [
            front_child(plan),
            engine_child(address, path, sets, engine, restart=settings.on_engine_death == "restart"),
        ]
        supervisor = Supervisor(children, grace_s=assembly.resolved.engine.drain_s + GRACE_S)
        return supervisor.run()


def front_child(plan: Plan) -> Child:
    """The front end as a Supervisor keeps it; its plan lies beside the engine's address."""
    file = Path(plan.address.removeprefix("ipc://")).with_name("front.json")
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
        out.write(msgspec.json.encode(plan))
    return Child("front end", [sys.executable, "-m", "stepwell_server.front", "--plan", str(file)], fds=(plan.fd,))


def summary(config: Config, where: str) -> Table:
    """Every setting that somebody made, with its origin, and what was made of the others."""
    table = Table("setting", "value", "from", title=f"stepwell serve: {where}", title_justify="left")
    for line in config.shown():
        if line.origin != "default":
            table.add_row(f"{line.section}.{line.key}", line.value, line.origin)
    for note in config.notes:
        table.add_row("note", note, "")
    table.caption = "all others have their defaults; `stepwell config show` prints them"
    table.caption_justify = "left"
    return table
