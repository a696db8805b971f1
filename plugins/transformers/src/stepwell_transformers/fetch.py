"""`stepwell fetch MODEL`: get a model and convert it, so that serving it starts in seconds."""

from __future__ import annotations

import click
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from stepwell.config import Config, environment
from stepwell.settings import EngineSettings


@click.command()
@click.argument("model", default="smollm2")
@click.option("--revision", help="Branch, tag or commit on the hub.")
def fetch(model: str, revision: str | None) -> None:
    """Fetch MODEL (a folder, a GGUF file, a hub name, or smollm2) and print where it is."""
    from stepwell_transformers.models import locate

    config = Config.load(None, environment())
    state = (config.bind("engine", EngineSettings).state_dir or config.cache_dir) / "transformers"
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(model, total=None)
        folder = locate(model, revision, state, lambda what: progress.update(task, description=what))
    click.echo(str(folder))
