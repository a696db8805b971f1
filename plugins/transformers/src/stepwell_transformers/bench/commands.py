"""The commands; what they measure with is imported when one runs."""

from __future__ import annotations

from collections.abc import Sequence

import click

from stepwell_transformers.bench.options import (
    LARGE_EXPERTS,
    TINY_EXPERTS,
    Limit,
    Point,
    Several,
    Tokens,
    bench_options,
    setup,
)


@click.command()
@bench_options
@click.option("--point", "points", type=Point(), multiple=True, help="Batch and context, as 8x2k; may be repeated.")
@click.option("--steps", type=click.IntRange(2), default=None, help="Steps of a turn.  [default: 64]")
@click.option(
    "--fuse", type=Several("auto", "kernels", "compile", "off"), default=(), help="Compare these: kernels,off"
)
@click.option("--graphs", type=Several("on", "off"), default=(), help="Compare these: on,off")
@click.option(
    "--against",
    type=click.Choice(["generate_batch"]),
    help="Also measure the continuous batching of transformers, on the same weights.",
)
@click.option(
    "--against-tokens", type=click.IntRange(8), default=None, help="Tokens that each of its rows gets.  [default: 64]"
)
@click.option(
    "--against-settings",
    type=Several("eager", "graphs", "async", "compiled"),
    default="eager,graphs,async",
    show_default=True,
    help="What it runs with; the fastest counts.",
)
def decode(
    model: str | None,
    device: str,
    page_size: int,
    rounds: int | None,
    sets: Sequence[str],
    as_json: bool,
    points: Sequence[tuple[int, int]],
    steps: int | None,
    fuse: Sequence[str],
    graphs: Sequence[str],
    against: str | None,
    against_tokens: int | None,
    against_settings: Sequence[str],
) -> None:
    """Time decode steps, and say what share they are of reading weights, K and V at the memory's speed.

    The pages hold random K and V, and lie scattered. Rows run through the runner's own steps, two in flight.
    """
    from stepwell_transformers.bench import decode as bench

    what = setup(model, device, page_size, rounds, sets)
    asked = bench.Asked(
        points or (bench.SMALL if what.small else bench.POINTS),
        steps or (8 if what.small else 64),
        fuse,
        graphs,
        against is not None,
        against_tokens or (8 if what.small else 64),
        ("eager",) if what.small else against_settings,
    )
    bench.run(what, asked, as_json)


@click.command()
@bench_options
@click.option("--tokens", "lengths", type=Tokens(), multiple=True, help="Of the prompt, as 8k; may be repeated.")
def prefill(
    model: str | None,
    device: str,
    page_size: int,
    rounds: int | None,
    sets: Sequence[str],
    as_json: bool,
    lengths: Sequence[int],
) -> None:
    """Time prompts, whole and with half of them cached, and say what share they are of a large matrix product's speed.

    They are computed in chunks as runner.chunk says.
    """
    from stepwell_transformers.bench import prefill as bench

    what = setup(model, device, page_size, rounds, sets)
    bench.run(what, lengths or (bench.SMALL if what.small else bench.LENGTHS), as_json)


@click.command()
@bench_options
@click.option("--hit", type=Tokens(), default=None, help="Tokens of the prefix in host memory.  [default: 8k]")
@click.option("--suffix", "suffixes", type=Tokens(), multiple=True, help="Tokens after it; may be repeated.")
@click.option(
    "--decode", "point", type=Point(), default=None, help="Rows behind which pages are saved.  [default: 8x2k]"
)
def overlap(
    model: str | None,
    device: str,
    page_size: int,
    rounds: int | None,
    sets: Sequence[str],
    as_json: bool,
    hit: int | None,
    suffixes: Sequence[int],
    point: tuple[int, int] | None,
) -> None:
    """Time a step that loads a prefix from host memory, against its compute and its copies alone; saves behind decode.

    Where a step is bound by compute, less than a tenth of the copy should show in it; where it is bound by the copy, it
    should take no more than a tenth longer than that.
    """
    from stepwell_transformers.bench import overlap as bench

    what = setup(model, device, page_size, rounds, sets)
    small = what.small
    suffixes = suffixes or (bench.SMALL if small else bench.SUFFIXES)
    bench.run(what, hit or (64 if small else 8192), suffixes, point or ((2, 64) if small else (8, 2048)), as_json)


@click.command()
@bench_options
@click.option(
    "--prefix", "lengths", type=Tokens(), multiple=True, help="Tokens in host memory, as 8k; may be repeated."
)
@click.option("--suffix", type=Tokens(), default=16, show_default=True, help="Tokens after it, which are computed.")
def hit(
    model: str | None,
    device: str,
    page_size: int,
    rounds: int | None,
    sets: Sequence[str],
    as_json: bool,
    lengths: Sequence[int],
    suffix: int,
) -> None:
    """Time the first token of a prompt whose prefix is in host memory, against computing all of it, through the engine.

    Beside the ratio of the two stands the one that the link and the matrix units allow.
    """
    from stepwell_transformers.bench import hit as bench

    what = setup(model, device, page_size, rounds, sets)
    bench.run(what, lengths or (bench.SMALL if what.small else bench.LENGTHS), suffix, as_json)


@click.command()
@bench_options
@click.option(
    "--limit", "limits", type=Limit(), multiple=True, help="engine.max_prefill_tokens, or off; may be repeated."
)
@click.option("--prompts", type=click.IntRange(1), multiple=True, help="That come at once; may be repeated.")
@click.option("--tokens", type=Tokens(), default=None, help="Of each prompt.  [default: 4k]")
def burst(
    model: str | None,
    device: str,
    page_size: int,
    rounds: int | None,
    sets: Sequence[str],
    as_json: bool,
    limits: Sequence[int],
    prompts: Sequence[int],
    tokens: int | None,
) -> None:
    """Measure the working memory of a burst of prompts at several limits of a step's tokens, through the engine.

    It should follow engine.max_prefill_tokens, not the burst. Off: one step computes all of it.
    """
    from stepwell_transformers.bench import burst as bench

    what = setup(model, device, page_size, rounds, sets)
    small = what.small
    bench.run(
        what,
        limits or (bench.SMALL_LIMITS if small else bench.LIMITS),
        prompts or (bench.SMALL_PROMPTS if small else bench.PROMPTS),
        tokens or (bench.SMALL_TOKENS if small else bench.TOKENS),
        as_json,
    )


@click.command()
@bench_options
@click.option("--tp", type=click.IntRange(2), default=2, show_default=True, help="Ranks, each with a device.")
@click.option("--tokens", "prompts", type=Tokens(), multiple=True, help="Of a prompt, as 8k; may be repeated.")
@click.option("--point", "points", type=Point(), multiple=True, help="Batch and context, as 64x2k; may be repeated.")
@click.option("--steps", type=click.IntRange(2), default=None, help="Decode steps of a turn.  [default: 64]")
def spread(
    model: str | None,
    device: str,
    page_size: int,
    rounds: int | None,
    sets: Sequence[str],
    as_json: bool,
    tp: int,
    prompts: Sequence[int],
    points: Sequence[tuple[int, int]],
    steps: int | None,
) -> None:
    """Time prompts and decode steps over several ranks against one, and sums over ranks against torch.distributed.

    Says how far the logits of ranks are from those of one, too. Ranks are processes, all on this machine.
    """
    from stepwell_transformers.bench import spread as bench

    what = setup(model, device, page_size, rounds, sets)
    small = what.small
    wanted = bench.Wanted(
        tp,
        prompts or (bench.SMALL_PROMPTS if small else bench.PROMPTS),
        points or (bench.SMALL_POINTS if small else bench.POINTS),
        steps or (4 if small else 64),
        bench.SMALL_SUMS if small else bench.SUMS,
        4 if small else 64,
    )
    bench.run(what, wanted, as_json)


@click.command()
@bench_options
@click.option("--ranks", type=click.IntRange(2), default=2, show_default=True, help="Each with a device of its own.")
@click.option("--dispatch", default="collective", show_default=True, help="What sends; it is slowed to each rate.")
@click.option("--prefill", type=Tokens(), multiple=True, help="Tokens of a prompt, as 8k; may be repeated.")
@click.option("--decode", "rows", type=click.IntRange(2), multiple=True, help="Rows of a decode step; may be repeated.")
@click.option(
    "--ratio", "ratios", type=click.FloatRange(0.01, 100), multiple=True, help="Communication to computation."
)
@click.option("--steps", type=click.IntRange(1), default=4, show_default=True, help="Of each kind a turn.")
def twobatch(
    model: str | None,
    device: str,
    page_size: int,
    rounds: int | None,
    sets: Sequence[str],
    as_json: bool,
    ranks: int,
    dispatch: str,
    prefill: Sequence[int],
    rows: Sequence[int],
    ratios: Sequence[float],
    steps: int,
) -> None:
    """Time steps as one batch and as two halves, over links as slow as communication is to be.

    The link is a declared one: what dispatches is slowed to it. Ranks are processes, all on this machine; steps run
    without CUDA graphs.
    """
    from stepwell_transformers.bench import twobatch as bench

    if any(ratio != ratio for ratio in ratios):
        raise click.BadParameter("nan is no ratio", param_hint="--ratio")
    name = model or (TINY_EXPERTS if device == "cpu" else LARGE_EXPERTS)
    what = setup(name, device, page_size, rounds or 3, sets)
    chosen = bool(prefill or rows)
    wanted = bench.Wanted(
        ranks,
        dispatch,
        prefill or (() if chosen else bench.SMALL_PREFILL if what.small else bench.PREFILL),
        rows or (() if chosen else bench.SMALL_DECODE if what.small else bench.DECODE),
        ratios or bench.RATIOS,
        steps,
    )
    bench.run(what, wanted, as_json)
