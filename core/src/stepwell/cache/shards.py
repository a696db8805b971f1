"""How many parts a page of each group is cut into by KV heads, on host and in storage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stepwell.errors import ConfigError
from stepwell.types import GroupSpec


def sharded(groups: Sequence[GroupSpec], head_shards: int | None) -> tuple[GroupSpec, ...]:
    """The groups of a runner with `shards` set. Raises ConfigError where their heads cannot be cut so.

    `head_shards`: as the config says; unset: a part a rank. What has one head in all, such as a latent, stays whole.
    """
    return tuple(replace(group, shards=_shards(group, head_shards)) for group in groups)


def own(groups: Sequence[GroupSpec]) -> tuple[GroupSpec, ...]:
    """The groups as a rank has them in an arena of its own: only its parts, or all where each rank holds the same."""
    return tuple(replace(group, ranks=1, shards=group.shards // group.ranks) for group in groups)


def tags_of(group: GroupSpec, rank: int) -> tuple[bytes, ...]:
    """Of the parts that one rank has."""
    parts = group.shards // group.ranks
    first = rank * parts if group.ranks > 1 else 0
    return group.tags[first : first + parts]


def _shards(group: GroupSpec, asked: int | None) -> int:
    if group.ranks == 1 and (group.heads == 1 or asked is None):
        return 1
    shards, heads = asked or group.ranks, group.heads * group.ranks
    if shards % group.ranks:
        raise ConfigError(
            f"cache.head_shards = {shards} cannot be shared out evenly among the {group.ranks} ranks that hold group "
            f"{group.name}: use {_choices(group)}"
        )
    if heads % shards:
        raise ConfigError(
            f"cache.head_shards = {shards} does not divide the {heads} KV heads of group {group.name}: "
            f"use {_choices(group)}"
        )
    return shards


def _choices(group: GroupSpec) -> str:
    """The numbers that would do."""
    heads = group.heads * group.ranks
    fit = [str(shards) for shards in range(group.ranks, heads + 1, group.ranks) if heads % shards == 0]
    return f"{', '.join(fit[:-1])} or {fit[-1]}" if len(fit) > 1 else fit[0]
