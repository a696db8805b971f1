"""`stepwell bench dispatch`: the command; what it measures with is imported when it runs."""

from __future__ import annotations

from collections.abc import Sequence

import click

from stepwell.cli.options import read_config, set_option


def _names(context: click.Context, param: click.Parameter, value: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in (value or "").split(",") if name.strip())


@click.command()
@set_option
@click.option("--backends", callback=_names, metavar="NAME,...", help="What to measure.  [default: all that can run]")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), help="[default: cuda where there are two]")
@click.option("--ranks", type=click.IntRange(1), help="Processes of this machine.  [default: its devices, or 2]")
@click.option("--tokens", "lengths", type=click.IntRange(1), multiple=True, help="A rank brings; may be repeated.")
@click.option("--hidden", type=click.IntRange(1), help="Numbers of a token.")
@click.option("--top-k", type=click.IntRange(1), default=8, show_default=True, help="Experts of a token.")
@click.option("--experts", type=click.IntRange(2), help="Over all ranks.")
@click.option("--dtype", type=click.Choice(["bfloat16", "float32"]), default="bfloat16", show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=20, show_default=True, help="Turns of each.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def dispatch(
    sets: Sequence[str],
    backends: Sequence[str],
    device: str | None,
    ranks: int | None,
    lengths: Sequence[int],
    hidden: int | None,
    top_k: int,
    experts: int | None,
    dtype: str,
    rounds: int,
    as_json: bool,
) -> None:
    """Time dispatches and combines of expert parallelism, each next to what it sends with, called directly.

    Experts are drawn evenly. Settings of a backend are written below its name: --set bench.slowed.inner=collective. A
    backend with room for fewer tokens gets as many as it takes. Bytes are those of tokens that go to other ranks, once
    a rank. The slowest rank of a turn counts.
    """
    from stepwell_kernels.bench import dispatch_runs as bench
    from stepwell_kernels.bench.dispatch_rank import Batches

    place = bench.where(device, ranks)
    size = bench.SIZES[place.device]
    asked = Batches(
        tuple(lengths) or size.lengths,
        hidden or size.hidden,
        top_k,
        experts or size.experts,
        dtype,
        rounds,
        tuple(sets),
    )
    bench.run(bench.chosen(backends, read_config(None, sets)), place, asked, as_json)
