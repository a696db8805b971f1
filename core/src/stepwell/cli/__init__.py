"""The command `stepwell`.

Help, version and completion import no plugin and no command. Plugins are loaded for a command that core lacks, or
by a command that needs them.
"""

from __future__ import annotations

import click

from stepwell import __version__
from stepwell.cli.lazy import Lazy, LazyGroup

COMMANDS = {
    "run": Lazy("stepwell.cli.talk:run", "Answer one prompt."),
    "chat": Lazy("stepwell.cli.talk:chat", "Talk to a model."),
    "replay": Lazy("stepwell.cli.replay:command", "Run a trace through the cache with a virtual clock."),
    "trace": Lazy("stepwell.cli.trace:trace", "Write traces to replay."),
    "plan": Lazy("stepwell.cli.plan:command", "Say what windows save for a model, and how to size its pools."),
    "bench": Lazy("stepwell.cli.bench:bench", "Measure parts of the cache."),
    "storage": Lazy("stepwell.cli.storage:storage", "Look after the pages that a storage holds."),
    "plugins": Lazy("stepwell.cli.plugins:plugins", "List the installed plugins and what became of each."),
    "plugin": Lazy("stepwell.cli.plugin:plugin", "Switch plugins off and on."),
    "rank": Lazy("stepwell.cli.rank:command", "Be one rank of an engine, started by torchrun or the like."),
    "doctor": Lazy("stepwell.cli.doctor:doctor", "Say whether a config can run, and what to mend."),
    "config": Lazy("stepwell.cli.config:config", "Show settings and where each comes from."),
    "new": Lazy("stepwell.cli.new:new", "Write a new plugin: code, test, README."),
}


class Root(LazyGroup):
    """Core's commands from a table; names that core lacks are asked of the plugins."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        own = super().get_command(ctx, cmd_name)
        if own is not None or ctx.resilient_parsing:
            return own
        from stepwell.cli.offered import find

        return find(cmd_name, tuple(self.table))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_commands(ctx, formatter)
        from stepwell.cli.offered import summaries

        lines = summaries()
        if lines:
            with formatter.section("Plugins"):
                formatter.write_dl(lines)


root: click.Command = click.version_option(__version__, message="stepwell %(version)s")(
    Root(
        "stepwell",
        COMMANDS,
        "Serve language models from a three-tier prefix cache in which every decision is a plugin.",
    )
)


def main() -> None:
    """Run the command line."""
    root(prog_name="stepwell")
