"""A buffer of the library, or why there is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from stepwell import ConfigError

T = TypeVar("T")


def made(make: Callable[[], T], name: str, size: int) -> T:
    """What `make` gives. Its failures are the machine's: of memory, of links, of drivers."""
    try:
        return make()
    except (RuntimeError, AssertionError) as error:
        said = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ConfigError(f"dispatch {name!r}: its buffer of {size / 2**20:.0f} MiB cannot be had ({said})") from error
