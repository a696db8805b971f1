"""`stepwell trace`: write traces of stated statistics, for `stepwell replay`."""

from __future__ import annotations

import errno
import gzip
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import click
import msgspec

from stepwell.cli.lazy import Lazy, LazyGroup
from stepwell.cli.options import Number
from stepwell.errors import ConfigError
from stepwell.replay.keyed import Keyed
from stepwell.replay.trace import MOONCAKE_BLOCK

MOST = 10_000_000
"""Requests, keys, or tokens of one request that can be meant."""
SLOWEST, FASTEST = 1e-3, 1e6
"""Requests a second."""

trace = LazyGroup(
    "trace",
    {"routing-keys": Lazy("stepwell.cli.trace:routing_keys", "Write requests with routing keys.")},
    "Write traces of stated statistics.",
)


@click.command(name="routing-keys")
@click.argument("out", metavar="OUT.jsonl", type=click.Path(path_type=Path))
@click.option("--requests", type=click.IntRange(1, MOST), default=2000, show_default=True, help="Lines to write.")
@click.option("--keys", type=click.IntRange(1, MOST), default=64, show_default=True, help="Routing keys.")
@click.option(
    "--zipf", type=Number(0, 10), default=1.0, show_default=True, help="Key i is as likely as 1 / i ^ so much; 0: even."
)
@click.option(
    "--rate",
    type=Number(SLOWEST, FASTEST),
    default=10.0,
    show_default=True,
    help="Requests a second, Poisson.",
)
@click.option(
    "--input", "input_tokens", type=click.IntRange(1, MOST), default=1024, show_default=True,
    help="Mean tokens of a prompt, behind what its key shares.",
)  # fmt: skip
@click.option(
    "--output", "output_tokens", type=click.IntRange(1, MOST), default=128, show_default=True,
    help="Mean tokens of an answer.",
)  # fmt: skip
@click.option(
    "--spread",
    type=Number(0, 10),
    default=0.5,
    show_default=True,
    help="Standard deviation of lengths over their mean.",
)
@click.option(
    "--shared", type=click.IntRange(0, MOST), default=0, show_default=True,
    help="Tokens at the start of all prompts of one key; whole blocks of them can be cached.",
)  # fmt: skip
@click.option("--tenants", type=click.IntRange(0, MOST), default=0, help="Name one of so many tenants in each line.")
@click.option("--urgent", type=Number(0, 1), default=0.0, help="Give such a share of the requests priority 1.")
@click.option(
    "--block-tokens", type=click.IntRange(1, MOST), default=MOONCAKE_BLOCK, show_default=True,
    help="Tokens that a hash id stands for; say the same to `stepwell replay`.",
)  # fmt: skip
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="The same seed writes the same file."
)
def routing_keys(
    out: Path,
    requests: int,
    keys: int,
    zipf: float,
    rate: float,
    input_tokens: int,
    output_tokens: int,
    spread: float,
    shared: int,
    tenants: int,
    urgent: float,
    block_tokens: int,
    seed: int,
) -> None:
    """Write requests with routing keys to OUT.jsonl, gzipped where it ends in .gz.

    Lines are Mooncake's, with `routing_key` beside, and `tenant` and `priority` where asked. Which experts the tokens
    of a key choose is no part of the file: it follows from the key's text by replay.affinity, replay.favoured and
    replay.affinity_seed.
    """
    drawn = Keyed(
        requests, keys, zipf, rate, input_tokens, output_tokens, spread, shared, tenants, urgent, block_tokens, seed
    )
    told = Told()
    try:
        lines = drawn.lines()
        write = gzip.open if out.suffix == ".gz" else open
        with write(out, "wt", encoding="utf-8") as file:
            for line in lines:
                file.write(f"{line}\n")
                told.wrote(line)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise
        raise ConfigError(f"{out} cannot be written ({error.strerror or error})") from error
    click.echo(f"wrote {out}: {told}")


class _Line(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    routing_key: str


@dataclass(slots=True)
class Told:
    """What has been written, in a sentence."""

    until: float = 0.0
    inputs: int = 0
    outputs: int = 0
    keys: Counter[str] = field(default_factory=Counter)

    def wrote(self, line: str) -> None:
        """Count a line."""
        read = msgspec.json.decode(line, type=_Line)
        self.until = read.timestamp / 1e3
        self.inputs += read.input_length
        self.outputs += read.output_length
        self.keys[read.routing_key] += 1

    def __str__(self) -> str:
        requests = self.keys.total()
        (most, times), *_ = self.keys.most_common(1)
        return (
            f"{requests:,} requests over {self.until:,.1f} s, {self.inputs:,} input and {self.outputs:,} output "
            f"tokens, {len(self.keys):,} keys, of which {most} has {times / requests:.1%}"
        )
