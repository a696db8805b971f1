"""Settings of built-in parts that could not work are refused, with what is wrong."""

import math

import pytest

from stepwell.builtin.memory import MemoryConfig
from stepwell.builtin.sim import SimConfig
from stepwell.builtin.writers import SelectiveConfig, WriteBackConfig
from stepwell.schedule.plan import Slots


@pytest.mark.parametrize(
    ("config", "name", "value"),
    [
        *((SimConfig, name, 0) for name in ("context", "token_bytes", "chunk", "depth", "max_steps")),
        (SimConfig, "windows", (3, -1)),
        (SimConfig, "eos_every", -1),
        *((SimConfig, "pace", value) for value in (-1.0, math.inf, math.nan)),
        (SelectiveConfig, "threshold", 0),
        *((WriteBackConfig, "reserve", value) for value in (-0.1, 2.0, math.nan)),
        *((MemoryConfig, "gib", value) for value in (0.0, 1e308, math.inf, math.nan)),
    ],
)
def test_a_setting_that_cannot_work_is_refused(config, name, value):
    with pytest.raises(ValueError, match=f"^{name}: "):
        config(**{name: value})


def test_slots_cost_nothing_until_they_are_taken():
    slots = Slots(10**12)
    assert [slots.take() for _ in range(3)] == [0, 1, 2]
    slots.leave(1, 5)
    slots.completed(5)
    assert slots.take() == 1 and len(slots) == 10**12 - 3
