"""What `[ray]` in a config sets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from stepwell.settings import above_zero, at_least


@dataclass(frozen=True, slots=True)
class RaySettings:
    """The `[ray]` table. Where clients connect is `server.host` and `server.port`, as for `stepwell serve`."""

    replicas: int = 1
    """Engines, each with a whole model, behind one address."""
    min_replicas: int | None = None
    """With `max_replicas`: engines that are there even when nobody asks for anything; unset: `replicas`."""
    max_replicas: int | None = None
    """Most engines; Ray starts and ends them by load. Unset: always `replicas`."""
    target_ongoing: float = 16.0
    """Requests, running and waiting, that one engine should have when their number follows the load."""
    upscale_delay_s: float = 10.0
    """Seconds of too much load before an engine is added."""
    downscale_delay_s: float = 300.0
    """Seconds of too little load before one is ended; what it has on device and host goes with it."""
    address: str | None = None
    """A Ray cluster to join, such as `auto` or `10.0.0.5:6379`; unset: a Ray of its own on this machine."""
    name: str = "stepwell"
    """Name of the application in Ray Serve."""
    route_prefix: str = "/"
    """Path under which everything is served, such as `/well`."""
    ingresses: int = 1
    """Front ends; each knows what every engine has cached."""
    cpus: float = 1.0
    """CPU cores that each engine asks Ray for."""
    gpus: float | None = None
    """GPUs that each engine asks Ray for; unset: one a rank where the runner uses CUDA, else none."""
    resources: Mapping[str, float] = field(default_factory=dict)
    """Further resources that each engine asks Ray for, by their names in the cluster."""
    object_store_mib: int = 100
    """Memory of a Ray of its own for objects; pages and answers do not pass through it."""

    def __post_init__(self) -> None:
        for name in ("replicas", "min_replicas", "max_replicas", "ingresses"):
            at_least(name, getattr(self, name), 1)
        at_least("object_store_mib", self.object_store_mib, 80)
        above_zero("target_ongoing", self.target_ongoing)
        for name in ("upscale_delay_s", "downscale_delay_s", "cpus", "gpus"):
            at_least(name, getattr(self, name), 0)
        for resource, amount in self.resources.items():
            above_zero("resources", amount)
            if not resource or resource in ("CPU", "GPU"):
                raise ValueError(f"resources: {resource!r} is set by ray.cpus and ray.gpus")
        if self.min_replicas is not None and self.max_replicas is None:
            raise ValueError("min_replicas: max_replicas is not set, so the number is always ray.replicas")
        if self.max_replicas is not None and self.least > self.max_replicas:
            raise ValueError(f"max_replicas: {self.max_replicas} is less than the least, {self.least}")
        if not self.name:
            raise ValueError("name: is empty")
        if not self.route_prefix.startswith("/") or (len(self.route_prefix) > 1 and self.route_prefix.endswith("/")):
            raise ValueError(f"route_prefix: {self.route_prefix!r} does not begin with a slash, or ends with one")
        if "{" in self.route_prefix or "}" in self.route_prefix:
            raise ValueError(f"route_prefix: {self.route_prefix!r} has braces, which no path here can have")

    @property
    def least(self) -> int:
        """Engines that are always there."""
        return self.replicas if self.min_replicas is None else self.min_replicas

    @property
    def most(self) -> int:
        """Engines that can be there at once."""
        return self.replicas if self.max_replicas is None else self.max_replicas
