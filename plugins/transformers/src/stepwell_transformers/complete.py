"""Whether a checkpoint has every weight of a model: what it lacks that library draws at random, with a warning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stepwell import ConfigError

SHOWN = 3
"""Names in a message."""


def refuse_incomplete(info: Mapping[str, Any], where: str) -> None:
    """ConfigError where weights are missing or of another shape, as `from_pretrained` tells it.

    Weights tied to others, and those that the library says may be absent, are not among them.
    """
    missing, other = sorted(info["missing_keys"]), sorted(key for key, *_ in info["mismatched_keys"])
    found = {"missing": missing, "of another shape": other}
    if missing or other:
        what = ", ".join(f"{kind}: {counted(names)}" for kind, names in found.items() if names)
        raise ConfigError(
            f"runner.model: the weights in {where} are not those of its config ({what}); "
            "give a config and weights that belong together"
        )


def counted(names: Sequence[str]) -> str:
    """How many there are, and the first of them."""
    return f"{len(names)}, {', '.join(names[:SHOWN])}{', ...' if len(names) > SHOWN else ''}"
