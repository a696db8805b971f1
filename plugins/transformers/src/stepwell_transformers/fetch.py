"""`stepwell fetch MODEL`: get a model and convert it, so that serving it starts in seconds."""

from __future__ import annotations

import logging

import click

from stepwell.config import Config, environment
from stepwell.settings import EngineSettings


@click.command()
@click.argument("model", default="smollm2")
@click.option("--revision", help="Branch, tag or commit on the hub.")
def fetch(model: str, revision: str | None) -> None:
    """Fetch MODEL (a folder, a GGUF file, a hub name, or smollm2) and print where it is."""
    from stepwell_transformers.locate import locate
    from stepwell_transformers.prepare import prepared
    from stepwell_transformers.progress import shown

    config = Config.load(None, environment())
    state = (config.bind("engine", EngineSettings).state_dir or config.cache_dir) / "transformers"
    with shown(logging.getLogger("stepwell.transformers")) as report:
        folder = locate(model, revision, state, report)
        prepared(folder, state, report)
    click.echo(str(folder))
