"""The launcher of `stepwell serve`: judges the config, holds the socket, keeps engine and front end running."""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
from rich.console import Console

from stepwell.assemble import Assembly
from stepwell.config import Config, environment
from stepwell.engine.supervise import Child, Supervisor
from stepwell.offers import Capability, provided
from stepwell.process import FORMAT, engine_child, private_address
from stepwell.resolve import Resolved
from stepwell.route.choose import check_shared
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
    check_groups(config, assembly.resolved)
    log = logging.getLogger("stepwell.launch")
    for warning in registry.warnings():
        log.warning("%s", warning)
    with listen(config, settings) as listening, private_address() as address:
        where = url(listening)
        console.print(summary(config, where), highlight=False, markup=False, soft_wrap=True)
        if exposed(listening) and not settings.client_keys:
            log.warning("server.host = %r lets other machines in, and no server.api_key is set", settings.host)
        ranks, runner = assembly.resolved.ranks, assembly.resolved.chosen["runner"]
        together = ranks.dp > 1 and Capability.TOGETHER in provided(runner.offer, runner.settings)
        children = family(address, listening, settings, path, sets, extra, groups=ranks.dp, together=together)
        supervisor = Supervisor(children, grace_s=assembly.resolved.engine.drain_s + GRACE_S)
        return supervisor.run()


def family(
    address: str,
    listening: socket.socket,
    settings: ServerSettings,
    path: Path | None,
    sets: Sequence[str],
    extra: Mapping[str, object],
    *,
    groups: int = 1,
    together: bool = False,
) -> list[Child]:
    """Front end and engines, in the order in which they start; the engines of several groups beside each other.

    `together`: groups whose runners compute each step together meet beside the address, and end together.
    """
    addresses = [address] if groups == 1 else [f"{address}-{group}" for group in range(groups)]
    plan = Plan(addresses, listening.fileno(), None if path is None else str(path), list(sets), dict(extra))
    own = {name: value for name, value in extra.items() if not name.startswith("server.")}
    restart = settings.on_engine_death == "restart" and not together
    if together:
        own["ranks.commons"] = f"file://{address.removeprefix('ipc://')}-commons"
    if groups == 1:
        return [front_child(plan), engine_child(address, path, sets, own, restart=restart)]
    engines = [
        engine_child(at, path, sets, {**own, "ranks.group": group}, restart=restart)
        for group, at in enumerate(addresses)
    ]
    return [
        front_child(plan),
        *(replace(child, name=f"engine of group {group}", beside=True) for group, child in enumerate(engines)),
    ]


def check_groups(config: Config, resolved: Resolved) -> None:
    """What several groups ask of a config beyond what one does; ConfigError."""
    if resolved.ranks.dp > 1:
        storage = resolved.chosen.get("storage")
        check_shared(config, storage, f"{resolved.ranks.dp} groups", "set ranks.dp = 1")


def front_child(plan: Plan) -> Child:
    """The front end as a Supervisor keeps it; its plan lies beside the engine's address."""
    file = Path(plan.addresses[0].removeprefix("ipc://")).with_name("front.json")
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
        out.write(msgspec.json.encode(plan))
    return Child("front end", [sys.executable, "-m", "stepwell_server.front", "--plan", str(file)], fds=(plan.fd,))


def summary(config: Config, where: str) -> str:
    """Every setting that somebody made, with its origin, and what was made of the others; a line each."""
    made = [line for line in config.shown() if line.origin != "default"]
    rows = [(f"{line.section}.{line.key}", _plain(line.value), _near(line.origin)) for line in made]
    wide = [max((len(row[column]) for row in rows), default=0) for column in (0, 1)]
    return "\n".join(
        [
            f"stepwell serve: {where}",
            *(f"  {name:{wide[0]}}  {value:{wide[1]}}  {origin}".rstrip() for name, value, origin in rows),
            *(f"  note: {note}" for note in config.notes),
            "  all others have their defaults; `stepwell config show` prints them",
        ]
    )


def _plain(value: str) -> str:
    """Text without the quotes that it has in TOML."""
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] == "'" else value


def _near(origin: str) -> str:
    """A file of the working directory without the way to it."""
    return origin.removeprefix(f"{Path.cwd()}{os.sep}")
