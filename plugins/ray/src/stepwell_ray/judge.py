"""Judging a config before anything starts: the first mistake is a ConfigError in one sentence."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stepwell.assemble import Assembly
from stepwell.config import Config
from stepwell.errors import ConfigError
from stepwell.route.choose import check_shared, chosen
from stepwell_ray import lacking
from stepwell_ray.parcel import Parcel
from stepwell_ray.settings import RaySettings
from stepwell_server.settings import ServerSettings


@dataclass(frozen=True)
class Judged:
    """A config that can be deployed."""

    parcel: Parcel
    ray: RaySettings
    host: str
    port: int
    tp: int
    device: str
    """What the runner's settings say: `cuda...`, `cpu`, or `auto`."""
    drain_s: float
    warnings: tuple[str, ...] = ()

    def gpus(self, there: bool) -> float:
        """GPUs that a replica asks for. `there`: whether the cluster has any."""
        if self.ray.gpus is not None:
            return self.ray.gpus
        cuda = self.device.startswith("cuda") or (self.device == "auto" and there)
        return float(self.tp) if cuda else 0.0

    @property
    def url(self) -> str:
        """Where clients of this machine find it."""
        given = f"[{self.host}]" if ":" in self.host else self.host
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self.host, given)
        return f"http://{host}:{self.port}{self.ray.route_prefix.rstrip('/')}"


def judge(path: Path | None, env: Mapping[str, str], sets: Sequence[str]) -> Judged:
    """Read and judge. Raises ConfigError."""
    if why := lacking():
        raise ConfigError(why)
    config = Config.load(path, env, sets)
    settings, server = config.bind("ray", RaySettings), config.bind("server", ServerSettings)
    registry = config.load_plugins()
    chosen(config, registry)
    resolved = Assembly(config, registry).resolved
    if resolved.ranks.dp > 1:
        text = f"{resolved.ranks.dp} is for engines on one machine; Ray has ray.replicas for that, so leave it out"
        raise config.error("ranks", "dp", text)
    if resolved.ranks.launcher == "external":
        raise config.error("ranks", "launcher", "'external' is not Ray, which starts the ranks here; leave it out")
    storage = resolved.chosen.get("storage")
    warnings = registry.warnings()
    if settings.most > 1:
        check_shared(config, storage, f"up to {settings.most} replicas", "set ray.replicas = 1")
    if settings.most > 1 and storage is None:
        warnings = [*warnings, "there is no storage, so a session that moves to another replica is computed anew there"]
    device = getattr(resolved.chosen["runner"].settings, "device", None)
    return Judged(
        parcel=Parcel.pack(path, env, sets),
        ray=settings,
        host=server.host,
        port=server.port or free_port(config, server.host),
        tp=resolved.ranks.tp,
        device=device if isinstance(device, str) else "cpu",
        drain_s=resolved.engine.drain_s,
        warnings=tuple(warnings),
    )


def free_port(config: Config, host: str) -> int:
    """A port that nobody listens on now: Ray Serve wants to be told one."""
    try:
        with socket.create_server((host, 0)) as probe:
            return int(probe.getsockname()[1])
    except OSError:
        raise config.error("server", "host", f"{host!r} is no address of this machine") from None
