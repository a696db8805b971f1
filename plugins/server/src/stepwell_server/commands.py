"""The commands `stepwell serve` and `stepwell server load`; what they need is imported when they run."""

from __future__ import annotations

from pathlib import Path

import click

from stepwell.cli.options import config_options


@click.command()
@click.argument("model", required=False)
@config_options
@click.option("--host", help="Address to listen on; default 127.0.0.1.")
@click.option("--port", type=int, help="Port to listen on; default 8000, 0: a free one.")
@click.option("--tp", type=int, help="Tensor-parallel ranks of a group; default 1.")
@click.option("--dp", type=int, help="Groups, each with the whole model and a cache of its own; default 1.")
@click.option("--api-key", help="Bearer token that /v1 asks for.")
@click.option("--admin-key", help="Bearer token of /admin, which is off without one.")
@click.option("--served-model-name", help="The model's name towards clients.")
@click.pass_context
def serve(
    context: click.Context,
    /,
    model: str | None,
    path: str | None,
    sets: tuple[str, ...],
    **options: str | int | None,
) -> None:
    """Serve MODEL with the API of OpenAI.

    MODEL is a path, a hub name or an alias such as smollm2; a config may name it instead, and may stand in its place
    where its name ends in .toml. Where neither says, the runner serves its own default: smollm2.
    """
    from rich.console import Console

    from stepwell.engine.supervise import ChildFailed
    from stepwell_server.launch import launch

    extra: dict[str, object] = {
        f"{'ranks' if name in ('tp', 'dp') else 'server'}.{name}": value
        for name, value in options.items()
        if value is not None
    }
    if model is not None and model.endswith(".toml") and path is None:
        path = model
    elif model is not None:
        extra["runner.model"] = model
    try:
        status = launch(None if path is None else Path(path), sets, extra, Console(stderr=True))
    except ChildFailed as error:
        click.echo(f"Error: {error}", err=True)
        status = 1
    context.exit(status)


@click.command()
@click.argument("url")
@click.option("--clients", default=64, show_default=True, help="Requests under way at once.")
@click.option("--seconds", default=180.0, show_default=True, help="For how long.")
@click.option("--abort-share", default=0.2, show_default=True, help="Share of requests that the client breaks off.")
@click.option("--prefixes", default=8, show_default=True, help="Different system prompts.")
@click.option("--prefix-words", default=200, show_default=True, help="Length of each.")
@click.option("--words", default=30, show_default=True, help="Most words of a question.")
@click.option("--max-tokens", default=64, show_default=True, help="Most tokens of an answer.")
@click.option("--patience", default=300.0, show_default=True, help="Seconds until an answer counts as failed.")
@click.option("--model", help="Model to ask for; default: what the server has.")
@click.option("--api-key", help="Bearer token of /v1.")
@click.option("--admin-key", help="Bearer token of /admin, for an audit at the end.")
@click.option("--seed", default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.pass_context
def load(context: click.Context, /, as_json: bool, **options: str | int | float | None) -> None:
    """Put load on the server at URL: streaming chats that share prefixes, some broken off at random.

    Exit status 1 where a request failed, or the server did not come to rest with clean books.
    """
    import asyncio

    import msgspec
    from rich.console import Console

    from stepwell_server.load import Load, run
    from stepwell_server.load_report import report

    console = Console(stderr=True)
    found = asyncio.run(run(msgspec.convert(options, Load), console))
    if as_json:
        click.echo(msgspec.json.encode(found).decode())
    else:
        report(found, console)
    context.exit(0 if found.clean else 1)
