"""Balancing experts while they serve: what was counted, when to plan, which weights move.

All of it is plain values: no clock, no device, no thread. It imports no torch.
"""

from stepwell_transformers.balance.cycle import Cycle, Verdict
from stepwell_transformers.balance.moves import Copy, LayerMoves, batches, digest, moves
from stepwell_transformers.balance.recorder import Recorder
from stepwell_transformers.balance.trigger import Due, Trigger, TriggerSettings, utilisation

__all__ = [
    "Copy",
    "Cycle",
    "Due",
    "LayerMoves",
    "Recorder",
    "Trigger",
    "TriggerSettings",
    "Verdict",
    "batches",
    "digest",
    "moves",
    "utilisation",
]
