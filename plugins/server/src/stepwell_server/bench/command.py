"""The command `stepwell bench serve`; what it needs is imported when it runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stepwell.cli.options import Number, config_options
from stepwell_server.bench.asked import Asked, lengths, levels, whole_levels

if TYPE_CHECKING:
    from rich.console import Console


@click.command(name="serve")
@config_options
@click.option("--model", "-m", metavar="MODEL", help="Of an engine of its own; with --url its name there.")
@click.option("--http", is_flag=True, help="Serve the engine as `stepwell serve` does, and measure over HTTP.")
@click.option("--url", metavar="URL", help="Measure the server at http://HOST:PORT/v1 instead.")
@click.option("--api-key-env", metavar="VARIABLE", help="Environment variable that holds the key for --url.")
@click.option(
    "--send",
    type=click.Choice(("tokens", "text", "chat")),
    help="How prompts are put; default: tokens in process, text over HTTP.",
)
@click.option("--vocab", type=click.IntRange(16), help="Token ids over HTTP are below this; default 32000.")
@click.option(
    "--prompts", type=click.Choice(("random", "shared", "sessions", "trace")), help="The workload; default: random."
)
@click.option("--trace", metavar="FILE", help="A trace with hash_ids, JSON lines, plain or gzipped.")
@click.option("--block-tokens", type=click.IntRange(1), default=512, show_default=True, help="A hash id's tokens.")
@click.option(
    "--input-tokens", type=lengths, metavar="TOKENS", default="512", show_default=True, help="Of a prompt, or a turn."
)
@click.option("--output-tokens", type=lengths, metavar="TOKENS", default="128", show_default=True, help="Of an answer.")
@click.option("--groups", type=click.IntRange(1), default=8, show_default=True, help="shared: prefixes.")
@click.option("--prefix-tokens", type=click.IntRange(1), default=1024, show_default=True, help="shared: of a prefix.")
@click.option("--turns", type=click.IntRange(1), default=5, show_default=True, help="sessions: turns of each.")
@click.option(
    "--concurrency",
    type=whole_levels,
    metavar="N,N,...",
    help="Requests at once, a level each; default 1,2,4,8,16.",
)
@click.option(
    "--rate", type=levels, metavar="N,N,...", help="Instead: requests a second at random times, a level each."
)
@click.option("--speed", type=levels, metavar="N,N,...", help="trace: its times so many times as fast.")
@click.option("--requests", type=click.IntRange(1), help="Of each level; default: 4 for each client, 16 at least.")
@click.option("--seconds", type=Number(0, min_open=True), help="For which requests are sent at each level.")
@click.option(
    "--warmup", type=click.IntRange(0), default=1, show_default=True, help="Requests of each client that do not count."
)
@click.option("--seed", type=int, help="Makes the same prompts again; default: others each time.")
@click.option("--temperature", type=Number(0), default=0.0, show_default=True)
@click.option(
    "--ignore-eos/--no-ignore-eos", default=True, show_default=True, help="Go on to the wanted number of tokens."
)
@click.option("--timeout", type=Number(0, min_open=True), default=600.0, show_default=True, help="Of a request, s.")
@click.option("--gpus", type=click.IntRange(1), help="Devices that the server uses: says GPU-seconds.")
@click.option("--gpu-price", type=Number(0), help="Of one device for an hour: says the price of a million tokens.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.option("--html", "html_file", metavar="FILE", help="Also write a page with plots.")
@click.option("--json-schema", is_flag=True, is_eager=True, help="Print the schema of --json, and end.")
@click.pass_context
def serve(
    context: click.Context,
    /,
    as_json: bool,
    html_file: str | None,
    json_schema: bool,
    seed: int | None,
    **given: Any,
) -> None:
    """Measure throughput and latency of serving while more and more requests run at once.

    Without --url it starts an engine of its own, as `stepwell run` does. Exit status 1 where a request failed; Ctrl-C
    prints what was measured so far.
    """
    import msgspec
    from rich.console import Console

    from stepwell.errors import ConfigError
    from stepwell_server.bench import plot, table
    from stepwell_server.bench.results import Report
    from stepwell_server.bench.session import Session

    if json_schema:
        click.echo(msgspec.json.format(msgspec.json.encode(msgspec.json.schema(Report))).decode())
        return
    asked = Asked(seed=_seed(seed), **given)
    asked.judge()
    if html_file is not None and not Path(html_file).absolute().parent.is_dir():
        raise ConfigError(f"--html {html_file}: there is no such folder")
    session = Session(asked, Console(stderr=True), ["stepwell", *sys.argv[1:]])
    report = session.run()
    if as_json:
        click.echo(msgspec.json.encode(report).decode())
    else:
        table.show(report, _wide(Console()))
    if html_file is not None:
        Path(html_file).write_text(plot.page(report), encoding="utf-8")
    context.exit(session.status(report))


def _wide(console: Console) -> Console:
    """A file or a pipe has no edge at which lines should break."""
    if not console.is_terminal:
        console.width = 120
    return console


def _seed(seed: int | None) -> str:
    """A new one each time: a server that ran on would know the prompts of the last time, and answer from its cache."""
    import secrets

    return str(secrets.randbelow(2**31) if seed is None else seed)
