"""Ray and Ray Serve as this command uses them: joined or started, looked at, and left as they were found."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import ray
from ray import serve
from ray.serve.config import ProxyLocation

from stepwell.errors import ConfigError
from stepwell_ray.judge import Judged
from stepwell_ray.told import State

LOOPBACK = "127.0.0.1"


@contextmanager
def own_ray(judged: Judged) -> Iterator[None]:
    """A Ray on this machine for as long as this lasts; it listens on loopback only."""
    _quiet()
    ray.init(
        address="local",  # never one that happens to run here
        _node_ip_address=LOOPBACK,
        include_dashboard=False,
        object_store_memory=judged.ray.object_store_mib * 2**20,
        log_to_driver=False,
        configure_logging=False,
    )
    try:
        _enough(judged)
        yield
    finally:
        ray.shutdown()


@contextmanager
def joined(address: str) -> Iterator[None]:
    """A cluster that others started, and that goes on without this command."""
    _quiet()
    try:
        ray.init(address=address, log_to_driver=False, configure_logging=False)
    except (ConnectionError, ValueError, RuntimeError) as error:
        text = str(error).partition("\n")[0].rstrip(".")
        raise ConfigError(
            f"ray.address = {address!r} cannot be joined: {text}; "
            "is `ray start` done there, and RAY_AUTH_MODE=token set here if it asks for a token?"
        ) from None
    try:
        yield
    finally:
        ray.shutdown()


def start_serve(judged: Judged) -> None:
    """Start Ray Serve unless it runs; where it does, it keeps the address that it has."""
    alone = judged.ray.address is None
    serve.start(
        proxy_location=ProxyLocation.HeadOnly if alone else ProxyLocation.EveryNode,
        http_options={"host": judged.host, "port": judged.port},
    )


def state(judged: Judged) -> State:
    """How the application is now."""
    found = serve.status().applications.get(judged.ray.name)
    if found is None:
        return State(judged.ray.name, "ABSENT", judged.url, "", {})
    replicas = {name: dict(one.replica_states) for name, one in found.deployments.items()}
    said = [*(one.message for one in found.deployments.values()), found.message]
    return State(judged.ray.name, found.status.value, judged.url, next((text for text in said if text), ""), replicas)


def delete(name: str) -> bool:
    """End an application; answers whether there was one."""
    if name not in serve.status().applications:
        return False
    serve.delete(name)
    if not serve.status().applications:
        serve.shutdown()
    return True


def _enough(judged: Judged) -> None:
    """What the replicas ask for has to be there, since nothing will add it to a Ray of one's own."""
    have = ray.cluster_resources()
    gpus = judged.gpus(have.get("GPU", 0.0) > 0)
    asked = {"CPU": judged.ray.cpus, "GPU": gpus, **judged.ray.resources}
    for resource, each in asked.items():
        whole, there = each * judged.ray.least, have.get(resource, 0.0)
        if whole > there:
            raise ConfigError(
                f"{judged.ray.least} replicas of {each:g} {resource} ask for {whole:g}, and there are {there:g} here: "
                "lower ray.replicas or what each asks for, or join a cluster with ray.address"
            )


def _quiet() -> None:
    for name in ("ray", "ray.serve"):
        logging.getLogger(name).setLevel(logging.WARNING)
