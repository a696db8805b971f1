"""Files of counts and placements, as they are written elsewhere, too; every mistake in them is one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt

from stepwell import ConfigError, Placement
from stepwell_eplb.check import MOST_TOKENS
from stepwell_eplb.greedy import Ints

COUNTS = "logical_count"
SLOTS = "physical_to_logical_map"
MOST_BYTES = 1 << 30


def read_counts(path: Path) -> Ints:
    """[steps, layers, experts]; a file without steps has one."""
    numbers = _numbers(path, _read(path), COUNTS)
    if numbers.ndim not in (2, 3) or 0 in numbers.shape:
        raise ConfigError(f"{path}: counts are [layers][experts] or [steps][layers][experts], not {_shape(numbers)}")
    if numbers.min() < 0:
        raise ConfigError(f"{path}: {_where(numbers, numbers < 0)} is {numbers.min():g}; a count is 0 or more")
    return numbers[None] if numbers.ndim == 2 else numbers


def read_placement(path: Path) -> Placement:
    """[layers, slots]."""
    numbers = _numbers(path, _read(path), SLOTS)
    if numbers.ndim != 2 or 0 in numbers.shape or numbers.min() < 0 or numbers.max() >= 1 << 31:
        raise ConfigError(f"{path}: a placement is the expert of each slot, [layers][slots], counted from 0")
    return Placement(numbers.astype(np.int32))


def write_placement(path: Path, placement: Placement, ranks: int) -> None:
    """So that it can be read back, here and by engines that take such maps."""
    text = json.dumps({"ranks": ranks, SLOTS: placement.experts.tolist()})
    write(path, text)


def write(path: Path, text: str) -> None:
    """ConfigError where it cannot be."""
    try:
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written ({error.strerror or error})") from error


def _read(path: Path) -> object:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ConfigError(f"{path} has more than {MOST_BYTES >> 20} MiB; add counts up before")
        return json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror or error})") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text (byte {error.start})") from error
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path} is not JSON: {error.msg} (line {error.lineno}, column {error.colno})") from error
    except (RecursionError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read as JSON: {error}") from error


def _numbers(path: Path, read: object, key: str) -> Ints:
    """Whole numbers of any shape; those written as 3.0 are whole, too."""
    if isinstance(read, dict):
        if key not in read:
            raise ConfigError(f"{path}: no {key!r} in it; it has {', '.join(map(repr, read)) or 'nothing'}")
        read = read[key]
    if not isinstance(read, list):
        raise ConfigError(f"{path}: a list of lists of numbers, or an object with {key!r}, is wanted")
    try:
        found = np.asarray(read)
    except (ValueError, OverflowError) as error:
        raise ConfigError(f"{path}: lists of one level are not equally long, or have other things in them") from error
    if found.size and (found.dtype.kind not in "iuf" or np.isnan(found).any()):
        raise ConfigError(f"{path}: something in it is no number, or far too large a one")
    broken = found != np.floor(found)
    if broken.any():
        raise ConfigError(f"{path}: {_where(found, broken)} is {found[broken][0]:g}; whole numbers are wanted")
    if found.size and np.abs(found).max() >= MOST_TOKENS:
        raise ConfigError(f"{path}: {_where(found, np.abs(found) >= MOST_TOKENS)} is larger than any count can be")
    return found.astype(np.int64)


def _where(found: npt.NDArray[np.generic], wrong: npt.NDArray[np.bool_]) -> str:
    return "number " + "".join(f"[{at}]" for at in np.argwhere(wrong)[0].tolist())


def _shape(found: Ints) -> str:
    return "".join(f"[{length}]" for length in found.shape) or "a number"
