"""`stepwell bench transfer`: the command; what it measures with is imported when it runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from stepwell import ConfigError
from stepwell.cache.host import container, machine, size
from stepwell.cli.options import read_config, set_option
from stepwell_transformers.bench.options import DIGITS

METHODS = ("auto", "cuda", "triton", "engine", "torch")
DEFAULT = "auto,cuda,triton"


def _numbers(context: click.Context, param: click.Parameter, value: str) -> tuple[int, ...]:
    parts = [part.strip() for part in value.split(",")]
    if not all(part.isdecimal() and len(part) <= DIGITS and int(part) for part in parts):
        raise click.BadParameter(f"{value!r} is no list of sizes, as 1,16,64 is")
    return tuple(int(part) for part in parts)


def _methods(context: click.Context, param: click.Parameter, value: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in value.split(","))
    for name in names:
        if name not in METHODS:
            raise click.BadParameter(f"{name!r} is none of {', '.join(METHODS)}")
    return names


def check_room(nbytes: int, host: int | None, device: int) -> None:
    """ConfigError where twice as much as one copy moves, which scattered pages take, is in neither memory."""
    for what, free in (("host", host), ("device", device)):
        if free is not None and 2 * nbytes > free:
            raise ConfigError(
                f"copies of {size(nbytes)} take {size(2 * nbytes)} of {what} memory, of which {size(free)} are free: "
                "lower --tokens, --layers or --token-bytes"
            )


@click.command()
@set_option
@click.option("--pages", default="1,16,64", show_default=True, callback=_numbers, help="Tokens a page.")
@click.option("--methods", default=DEFAULT, show_default=True, callback=_methods, help="Which to compare.")
@click.option("--layers", type=click.IntRange(1), default=32, show_default=True)
@click.option("--tokens", type=click.IntRange(1), default=8192, show_default=True, help="Tokens of one copy.")
@click.option(
    "--token-bytes", type=click.IntRange(1), default=2048, show_default=True, help="Of K, and of V, a token and layer."
)
@click.option(
    "--parts", type=click.IntRange(1), default=1, show_default=True, help="Parts by heads of a page in host memory."
)
@click.option("--rounds", type=click.IntRange(1), default=7, show_default=True, help="Turns that all copies take.")
@click.option("--blocks", type=click.IntRange(1), default=None, help="Thread blocks of kernels; unset: by their rule.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def transfer(
    sets: Sequence[str],
    pages: Sequence[int],
    methods: Sequence[str],
    layers: int,
    tokens: int,
    token_bytes: int,
    parts: int,
    rounds: int,
    blocks: int | None,
    as_json: bool,
) -> None:
    """Time copies of scattered pages between device and host memory, and what they take from a matrix product.

    Beside them stand one large copy of as many bytes, which is the link's limit, and a loop of cudaMemcpyAsync in C
    with a call for each page, layer and K or V.
    """
    import torch

    if not torch.cuda.is_available():
        raise ConfigError("bench transfer measures the link to a CUDA device, and torch finds none here")
    for page in pages:
        if tokens % page:
            raise ConfigError(f"--tokens {tokens} is no whole number of pages of {page}; choose a multiple")
    if token_bytes % parts:
        raise ConfigError(f"--token-bytes {token_bytes} does not make {parts} equal parts; choose a multiple")
    room = container() or machine()
    check_room(2 * layers * tokens * token_bytes, room and room.nbytes, torch.cuda.mem_get_info()[0])
    from stepwell_transformers.bench import transfer_runs as bench

    cache = Path(read_config(None, sets).cache_dir) / "cubins"
    bench.run(bench.Asked(pages, methods, layers, tokens, token_bytes, rounds, blocks, cache, parts), as_json)
