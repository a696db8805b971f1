"""How long a request waits for its pages from storage: not at all, until they are there, or for a time that grows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from stepwell.abc.prefetch import FetchProgress, PrefetchPolicy
from stepwell.offers import Context

THRESHOLD = 64
"""Tokens that are quicker computed than fetched from most storage."""


@dataclass(frozen=True, slots=True)
class PrefetchConfig:
    """The `[prefetch]` table when `use = "best_effort"`."""

    threshold: int = THRESHOLD
    """Fewest tokens worth asking storage for."""

    def __post_init__(self) -> None:
        if self.threshold < 1:
            raise ValueError(f"threshold: {self.threshold} is less than 1")

    def in_pages(self, page_size: int) -> tuple[Self, list[str]]:
        """With the threshold rounded up to whole pages, and a note where somebody had said otherwise."""
        whole = -(-self.threshold // page_size) * page_size
        if self.threshold in (whole, THRESHOLD):
            return replace(self, threshold=whole), []
        text = f"prefetch.threshold: {self.threshold} is not a multiple of cache.page_size = {page_size}"
        return replace(self, threshold=whole), [f"{text}; {whole} is used"]


@dataclass(frozen=True, slots=True)
class WaitConfig(PrefetchConfig):
    """The `[prefetch]` table when `use = "wait_complete"`."""

    cap_s: float = 60.0
    """Longest wait, however far the fetch is: storage that hangs costs hits, not answers."""

    def __post_init__(self) -> None:
        PrefetchConfig.__post_init__(self)
        if self.cap_s < 0:
            raise ValueError(f"cap_s: {self.cap_s} is less than 0")


@dataclass(frozen=True, slots=True)
class TimeoutConfig(PrefetchConfig):
    """The `[prefetch]` table when `use = "timeout"`."""

    base_s: float = 1.0
    """Wait allowed for any fetch."""
    per_ki_token_s: float = 0.25
    """Further wait for every 1024 tokens wanted."""
    cap_s: float = 30.0
    """Longest wait."""

    def __post_init__(self) -> None:
        PrefetchConfig.__post_init__(self)
        for name in ("base_s", "per_ki_token_s", "cap_s"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}: {getattr(self, name)} is less than 0")


class BestEffort(PrefetchPolicy):
    """Fetches while the request queues, and gives up what is not there when it could run."""

    def __init__(self, config: PrefetchConfig, context: Context) -> None:
        self._threshold = config.threshold

    def start(self, missing_tokens: int) -> bool:
        return missing_tokens >= self._threshold

    def stop(self, progress: FetchProgress) -> bool:
        return True


class WaitComplete(BestEffort):
    """Waits until everything that storage holds is there."""

    def __init__(self, config: WaitConfig, context: Context) -> None:
        super().__init__(config, context)
        self._cap_s = config.cap_s

    def stop(self, progress: FetchProgress) -> bool:
        return progress.done_pages == progress.wanted_pages or progress.waited_s >= self._cap_s


class Timeout(BestEffort):
    """Waits for a time that grows with what is fetched."""

    def __init__(self, config: TimeoutConfig, context: Context) -> None:
        super().__init__(config, context)
        self._config = config

    def stop(self, progress: FetchProgress) -> bool:
        wanted = max(progress.wanted_pages, 0)  # not known yet: what any fetch may take
        allowed = self._config.base_s + self._config.per_ki_token_s * wanted * progress.page_tokens / 1024
        return progress.done_pages == progress.wanted_pages or progress.waited_s >= min(allowed, self._config.cap_s)
