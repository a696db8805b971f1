"""Balancing experts while they serve: what was counted, when to plan, which weights move, which replica a token takes.

All of it is plain values: no clock, no device, no thread. It imports no torch.
"""

from stepwell_transformers.balance.cycle import Cycle, Verdict
from stepwell_transformers.balance.maps import Choices, Rule, check_rule, choices
from stepwell_transformers.balance.moves import Copy, LayerMoves, batches, digest, moves
from stepwell_transformers.balance.recorder import Recorder, count
from stepwell_transformers.balance.trigger import Due, Trigger, TriggerSettings, utilisation

__all__ = [
    "Choices",
    "Copy",
    "Cycle",
    "Due",
    "LayerMoves",
    "Recorder",
    "Rule",
    "Trigger",
    "TriggerSettings",
    "Verdict",
    "batches",
    "check_rule",
    "choices",
    "count",
    "digest",
    "moves",
    "utilisation",
]
