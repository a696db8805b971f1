"""The application that Ray Serve is given: engines, and ingresses in front of them."""

from __future__ import annotations

from ray import serve
from ray.serve import Application
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy
from ray.serve.schema import LoggingConfig

from stepwell_ray.ingress import Ingress
from stepwell_ray.judge import Judged
from stepwell_ray.replica import END_S, Replica
from stepwell_ray.told import ENGINE

QUIET = LoggingConfig(log_level="WARNING", enable_access_log=False)
MANY = 100_000
"""Requests that Serve may hand to an ingress at once: how many wait is `server.max_waiting`'s business."""


def application(judged: Judged, gpus: float) -> Application:
    """Nothing starts yet."""
    settings = judged.ray
    actor = {"num_cpus": settings.cpus, "num_gpus": gpus, "resources": dict(settings.resources)}
    common = {
        "health_check_period_s": 1.0,
        "health_check_timeout_s": 30.0,
        "max_ongoing_requests": MANY,
        "logging_config": QUIET,
    }
    drain_s = judged.drain_s + END_S
    number = {"autoscaling_config": _scaling(judged)} if settings.max_replicas else {"num_replicas": settings.replicas}
    engines = serve.deployment(
        Replica,
        name=ENGINE,
        ray_actor_options=actor,
        graceful_shutdown_timeout_s=drain_s,
        graceful_shutdown_wait_loop_s=0.1,
        **number,
        **common,
    )
    ingresses = serve.deployment(
        Ingress,
        name="ingress",
        num_replicas=settings.ingresses,
        ray_actor_options={"num_cpus": 0},
        graceful_shutdown_timeout_s=drain_s,
        graceful_shutdown_wait_loop_s=0.1,
        **common,
    )
    return ingresses.bind(judged.parcel, engines.bind(judged.parcel))


def _scaling(judged: Judged) -> AutoscalingConfig:
    settings = judged.ray
    return AutoscalingConfig(
        min_replicas=settings.least,
        max_replicas=settings.most,
        target_ongoing_requests=settings.target_ongoing,
        upscale_delay_s=settings.upscale_delay_s,
        downscale_delay_s=settings.downscale_delay_s,
        look_back_period_s=15.0,
        policy=AutoscalingPolicy(policy_function="stepwell_ray.scale:by_ongoing"),
    )
