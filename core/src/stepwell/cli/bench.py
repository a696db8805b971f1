"""`stepwell bench`: each measurement is a command of its own; plugins offer further ones."""

from __future__ import annotations

import click

from stepwell.cli.lazy import Lazy, LazyGroup


class Bench(LazyGroup):
    """Core's measurements from a table; the others are asked of the plugins."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        own = super().get_command(ctx, cmd_name)
        if own is not None or ctx.resilient_parsing:
            return own
        from stepwell.cli.offered import find_bench

        return find_bench(cmd_name, tuple(self.table))


@click.command()
def more() -> None:
    """List the measurements that plugins offer; this imports them."""
    from stepwell.cli.offered import benches

    offered = benches()
    width = max((len(name) for name, _ in offered), default=0)
    for name, line in offered:
        click.echo(f"{name:<{width}}  {line}")


bench = Bench(
    "bench",
    {
        "branches": Lazy("stepwell.bench.branches:command", "Keep windows where sessions grow and branch."),
        "index": Lazy("stepwell.bench.index:command", "Match, publish and evict in the prefix tree."),
        "more": Lazy("stepwell.cli.bench:more", "List what plugins offer to measure, and run it by the same name."),
        "ranks": Lazy("stepwell.bench.ranks:command", "Bring plans to the ranks of a model."),
        "schedule": Lazy("stepwell.bench.schedule:command", "Order thousands of waiting requests."),
        "storage": Lazy("stepwell.bench.storage:command", "Put and get pages in a storage backend."),
        "windows": Lazy("stepwell.bench.windows:command", "Keep sliding-window layers as windows, or whole."),
    },
    "Measure parts of Stepwell.",
)
