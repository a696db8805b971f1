"""Numbers that cannot be placed, refused in a sentence each."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stepwell import ConfigError, Placement, Topology
from stepwell_eplb.greedy import Ints

MOST_TOKENS = 1 << 53
"""Of one layer: what single tokens can still be told apart in."""


def check_load(load: npt.NDArray[np.generic]) -> Ints:
    """Tokens [layers, experts] as whole numbers."""
    if load.ndim != 2 or 0 in load.shape:
        raise ConfigError(f"expert loads are [layers, experts], at least one of each, not {list(load.shape)}")
    if not np.issubdtype(load.dtype, np.integer):
        raise ConfigError(f"expert loads are whole numbers of tokens, not {load.dtype}")
    if load.min() < 0:
        layer, expert = np.argwhere(load < 0)[0]
        raise ConfigError(f"layer {layer}, expert {expert}: {load[layer, expert]} tokens; a load is 0 or more")
    # Summed as floats, which do not wrap around.
    if load.sum(axis=1, dtype=np.float64).max() >= MOST_TOKENS:
        raise ConfigError(f"a layer has {MOST_TOKENS:,} tokens or more in all; divide all loads by one number")
    return np.ascontiguousarray(load, dtype=np.int64)


def check_shape(experts: int, slots: int, ranks: int, nodes: int, groups: int) -> None:
    """Whether they divide as they have to."""
    for name, number in (("ranks", ranks), ("nodes", nodes), ("groups", groups), ("slots", slots)):
        if number < 1:
            raise ConfigError(f"{number} {name}: there is at least one")
    if slots % ranks:
        raise ConfigError(f"{slots} slots do not divide over {ranks} ranks")
    if slots < experts:
        raise ConfigError(f"{slots} slots are too few for {experts} experts; each needs one")
    if ranks % nodes:
        raise ConfigError(f"{ranks} ranks do not divide over {nodes} nodes")
    if experts % groups:
        raise ConfigError(f"{experts} experts do not divide into {groups} groups")


def check_topology(experts: int, topology: Topology) -> None:
    """Whether so many experts can stand there."""
    check_shape(experts, topology.slots, topology.ranks, topology.nodes, topology.groups)


def check_current(current: Placement, layers: int, experts: int, slots: int) -> Ints:
    """The current placement [layers, slots], which has every expert of each layer."""
    found = np.asarray(current.experts)
    if found.shape != (layers, slots):
        raise ConfigError(f"the current placement is {list(found.shape)}; layers and slots are [{layers}, {slots}]")
    if not np.issubdtype(found.dtype, np.integer):
        raise ConfigError(f"a placement has numbers of experts, not {found.dtype}")
    if found.min() < 0 or found.max() >= experts:
        raise ConfigError(
            f"the current placement names expert {found.min() if found.min() < 0 else found.max()}; "
            f"they are 0 to {experts - 1}"
        )
    found = found.astype(np.int64)
    present = np.zeros((layers, experts), dtype=np.bool_)
    np.put_along_axis(present, found, values=True, axis=1)
    if not present.all():
        layer, expert = np.argwhere(~present)[0]
        raise ConfigError(f"the current placement lacks expert {expert} in layer {layer}")
    return found
