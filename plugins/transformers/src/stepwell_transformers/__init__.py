"""Hugging Face decoders over paged pools: the runner, its tokenizer, and `stepwell fetch`."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from stepwell import Capability, Codec, Context, Offer, Runner, hookimpl
from stepwell_transformers.config import TransformersConfig

if TYPE_CHECKING:
    from stepwell_transformers.runner import TransformersRunner


def _runner(config: TransformersConfig, context: Context) -> "TransformersRunner":
    from stepwell_transformers.runner import TransformersRunner

    return TransformersRunner(config, context)


def _codec(config: TransformersConfig, context: Context) -> Codec:
    from stepwell_transformers.codec import TransformersCodec
    from stepwell_transformers.random_weights import RandomCodec, wanted

    if (random := wanted(config.model)) is not None:
        return RandomCodec(random.vocab)
    return TransformersCodec(config, context)


@hookimpl
def stepwell_runners() -> Iterable[Offer[Runner]]:
    """Decoders through transformers."""
    return [Offer("transformers", _runner, TransformersConfig, provides=frozenset({Capability.RANKS}))]


@hookimpl
def stepwell_codecs() -> Iterable[Offer[Codec]]:
    """Their tokenizers."""
    return [Offer("transformers", _codec, TransformersConfig)]


@hookimpl
def stepwell_commands() -> Iterable[click.Command]:
    """Fetch a model before it is served."""
    from stepwell_transformers.fetch import fetch

    return [fetch]


@hookimpl
def stepwell_benches() -> Iterable[click.Command]:
    """How near to the device's limits a model runs."""
    from stepwell_transformers.bench.commands import burst, decode, hit, overlap, prefill, spread, twobatch
    from stepwell_transformers.bench.transfer import transfer

    return [burst, decode, hit, overlap, prefill, spread, transfer, twobatch]
