"""What runs steps as two halves on a CUDA device, made of its parts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from stepwell_transformers.twobatch.aside import Side
from stepwell_transformers.twobatch.enqueue import InHalves
from stepwell_transformers.twobatch.graphs import HalvedGraphs
from stepwell_transformers.twobatch.overlap import overlap_of
from stepwell_transformers.twobatch.pace import DeviceWatch

if TYPE_CHECKING:
    from stepwell_kernels.paged import StepShape
    from stepwell_transformers.apart import Report
    from stepwell_transformers.config import TransformersConfig
    from stepwell_transformers.cuda.compute import Compute
    from stepwell_transformers.cuda.lanes import CudaLane


def in_halves(
    compute: Compute,
    config: TransformersConfig,
    shapes: Sequence[StepShape],
    lane: CudaLane,
    new_lane: Callable[[], CudaLane],
    report: Report,
    log: logging.Logger,
    least: Callable[[int], int] | None = None,
) -> InHalves | None:
    """As a config asks for it, with graphs for halves of `shapes`; enqueued in `lane`. `least` as of `overlap_of`."""
    if config.overlap == "off":
        return None
    sides = Side(lane, new_lane()), Side(lane, new_lane())
    overlap = overlap_of(config.overlap, compute.model, DeviceWatch(), log, least, (sides[0].over, sides[1].over))
    if overlap is None:
        return None
    graphs, sizes = None, halves_of(shapes, 2 if config.overlap == "auto" else config.overlap)
    if sizes and least is None:  # a group without one of that size would exchange something else
        graphs = HalvedGraphs(compute, sizes, overlap)
        graphs.capture(lane, report, log)
    return InHalves(overlap, compute, graphs)


def halves_of(shapes: Sequence[StepShape], fewest: int) -> list[int]:
    """Rows of halves for which there are graphs: of decodes of `shapes`, where a step has at least `fewest`."""
    return sorted({-(-shape.decodes // 2) for shape in shapes if not shape.prompts and shape.decodes >= max(fewest, 2)})
