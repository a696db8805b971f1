"""`stepwell deploy ray`: bring an application up, say how far it is, and end what was started."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable

from ray import serve
from rich.console import Console

from stepwell.engine.supervise import ChildFailed
from stepwell_ray import cluster
from stepwell_ray.application import application
from stepwell_ray.judge import Judged
from stepwell_ray.told import State, progress, why

LOOK_S = 0.5


def deploy(judged: Judged, console: Console, *, detach: bool, tell: Callable[[State], None]) -> int:
    """Deploy, and serve until told to stop; with `detach`, until everything is ready. Answers the exit status."""
    address = judged.ray.address
    for warning in judged.warnings:
        console.print(f"note: {warning}", highlight=False, markup=False, soft_wrap=True)
    console.print("starting Ray on this machine" if address is None else f"joining Ray at {address}", markup=False)
    with cluster.own_ray(judged) if address is None else cluster.joined(address):
        stop = threading.Event()
        for which in (signal.SIGINT, signal.SIGTERM):
            signal.signal(which, lambda number, frame: stop.set())
        cluster.start_serve(judged)
        kept = False
        try:
            ready = _bring_up(judged, console, stop)
            if ready is not None:
                tell(ready)
                kept = detach
            if ready is not None and not detach:
                _watch(judged, console, stop)
        finally:
            if not kept:
                console.print("ending the replicas", markup=False)
                cluster.delete(judged.ray.name)
    return 0


def _bring_up(judged: Judged, console: Console, stop: threading.Event) -> State | None:
    """Deploy and wait; None: told to stop before it was ready. Raises ChildFailed where it cannot be."""
    import ray

    gpus = judged.gpus(ray.cluster_resources().get("GPU", 0.0) > 0)
    failed: list[Exception] = []

    def run() -> None:
        try:
            serve.run(application(judged, gpus), name=judged.ray.name, route_prefix=judged.ray.route_prefix)
        except Exception as error:
            failed.append(error)

    running = threading.Thread(target=run, daemon=True, name="deploy")
    running.start()
    shown = ""
    while running.is_alive() and not stop.wait(LOOK_S):
        shown = _show(cluster.state(judged), console, shown)
    if stop.is_set():
        return None
    now = cluster.state(judged)
    if failed or now.status != "RUNNING":
        raise ChildFailed(why(now.message or str(failed[0] if failed else now.status)))
    _show(now, console, shown)
    return now


def _watch(judged: Judged, console: Console, stop: threading.Event) -> None:
    """Say what changes, until told to stop."""
    shown = progress(cluster.state(judged))
    while not stop.wait(LOOK_S):
        shown = _show(cluster.state(judged), console, shown)


def _show(now: State, console: Console, shown: str) -> str:
    text = progress(now)
    if text != shown:
        console.print(text, highlight=False, markup=False, soft_wrap=True)
    return text
