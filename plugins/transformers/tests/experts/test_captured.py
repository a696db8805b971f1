"""Which steps get a CUDA graph where experts are dispatched; what decides that needs no device."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from stepwell import Capability

pytest.importorskip("triton")

from stepwell_kernels.paged import StepShape
from stepwell_transformers.cuda.assemble import _captured

SHAPES = (StepShape(1, 0, 1), StepShape(4, 0, 4), StepShape(8, 0, 8), StepShape(0, 1, 32))


def test_decodes_are_captured_as_far_as_their_dispatch_can_be(
    whole_of: Any, spread_over: Any, table: Any, table_part: Any, caplog: Any
) -> None:
    log, safe = logging.getLogger("graphs"), frozenset({Capability.GRAPH_SAFE})
    part = table_part(table(1), provides=safe, capacity=4)
    experts = spread_over(whole_of("mixtral"), 1, decode=part).experts[0]
    assert _captured(SHAPES, experts, log) == SHAPES[:2], "prompts, and decodes that go as prompts do, are not"
    assert not caplog.records
    assert _captured(SHAPES, spread_over(whole_of("mixtral"), 1).experts[0], log) == ()
    assert "decodes run without CUDA graphs" in caplog.records[0].getMessage()
