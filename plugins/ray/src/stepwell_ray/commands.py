"""The command `stepwell deploy ray`; what it needs is imported when it runs."""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from pathlib import Path

import click

from stepwell.cli.options import set_option

ALONE = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_enable_metrics_collection": "0",
    "RAY_AUTH_MODE": "token",
}
"""What Ray and the processes that it starts go by: nothing is reported to anybody, nodes are known by their loopback
address (as on systems where that is the default), no ports are opened for figures that nobody asked for, and what Serve
listens on for its own sake asks for a token."""


def on_loopback(env: MutableMapping[str, str]) -> None:
    """Have a Ray of one's own keep to this machine; before Ray is imported."""
    for name, value in ALONE.items():
        env.setdefault(name, value)


@click.group()
def deploy() -> None:
    """Run engines on a cluster."""


@deploy.command()
@click.argument("config", required=False, type=click.Path(dir_okay=False))
@set_option
@click.option("--detach", is_flag=True, help="Leave it running in the cluster at ray.address, and return once ready.")
@click.option("--status", "ask", is_flag=True, help="Only say how the application is; exit status 1: not running.")
@click.option("--down", is_flag=True, help="Only end the application; the cluster goes on.")
@click.option("--json", "as_json", is_flag=True, help="Print what is found, or the address once ready, as JSON.")
@click.pass_context
def ray(
    context: click.Context,
    /,
    config: str | None,
    sets: tuple[str, ...],
    detach: bool,
    ask: bool,
    down: bool,
    as_json: bool,
) -> None:
    """Serve CONFIG with Ray Serve: engines as replicas, behind an ingress that routes by cached prefix.

    Without `ray.address` in it, Ray is started on this machine, on loopback only, and Ctrl-C ends everything.
    """
    from rich.console import Console

    from stepwell.config import environment
    from stepwell.engine.supervise import ChildFailed
    from stepwell.errors import ConfigError
    from stepwell_ray.judge import judge

    if ask + down + detach > 1:
        raise ConfigError("--status, --down and --detach are three things to do; give one of them")
    judged = judge(None if config is None else Path(config), environment(), sets)
    if detach and judged.ray.address is None:
        raise ConfigError(
            "--detach: a Ray of its own ends with this command; start one with `ray start --head` and set ray.address"
        )
    if judged.ray.address is None:
        on_loopback(os.environ)

    import msgspec

    from stepwell_ray import cluster
    from stepwell_ray.launch import deploy as run
    from stepwell_ray.told import State, progress

    def tell(state: State) -> None:
        if as_json:
            click.echo(msgspec.json.encode(state).decode())
        elif ask or down:
            click.echo(f"{state.name}: {progress(state)}  {state.message}".rstrip())
        else:
            click.echo(f"serving at {state.url}/v1")

    if not (ask or down):
        try:
            status = run(judged, Console(stderr=True), detach=detach, tell=tell)
        except ChildFailed as error:
            click.echo(f"Error: {error}", err=True)
            status = 1
        context.exit(status)
    with cluster.joined(judged.ray.address or "auto"):
        if down and not cluster.delete(judged.ray.name):
            raise ConfigError(f"ray.name = {judged.ray.name!r}: there is no such application to end")
        found = cluster.state(judged)
        tell(found)
    context.exit(0 if down or found.status == "RUNNING" else 1)
