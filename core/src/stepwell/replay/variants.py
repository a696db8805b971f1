"""`--ablate`: the same traffic with each part off, so that what a part brings can be told."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to run a trace."""

    name: str
    sets: tuple[str, ...] = ()
    """Settings that differ, as `--set` takes them."""
    host: bool = True
    storage: bool = True
    cache: bool = True
    """Off: nothing is kept for other requests."""


def variants(*, host: bool, storage: bool, write: str, schedule: str, windows: bool = False) -> list[Variant]:
    """As configured, then without each part that the config has."""
    found = [Variant("as configured")]
    if windows:
        found.append(Variant("windows as full", sets=("replay.windows=false",)))
    if storage:
        found.append(Variant("no storage", storage=False))
    if host:
        other = "write_through" if write != "write_through" else "write_through_selective"
        found.append(Variant(f"{other}", sets=(f"write.use={other}",)))
        found.append(Variant("no host tier", host=False, storage=False))
    if schedule != "fcfs":
        found.append(Variant("fcfs", sets=("schedule.use=fcfs",)))
    found.append(Variant("no cache", host=False, storage=False, cache=False))
    return found
