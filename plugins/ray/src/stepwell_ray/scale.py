"""How many replicas Ray Serve should run: as many as keep each at `target_ongoing` requests."""

from __future__ import annotations

from ray.serve.config import AutoscalingContext

from stepwell_ray.wanted import wanted


def by_ongoing(context: AutoscalingContext) -> tuple[int, dict[str, object]]:
    """Serve's own count sees none of our requests, since they pass by it; delays and limits are still Serve's."""
    return wanted(_latest(context), float(context.config.target_ongoing_requests), context.current_num_replicas), {}


def _latest(context: AutoscalingContext) -> list[float]:
    return [float(value) for value in (context.aggregated_metrics or {}).get("ongoing", {}).values()]
