"""What a brain counts."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from stepwell.types import Cached


@dataclass(slots=True)
class Counters:
    """Counters since the start. Tokens, requests or bytes, as the name says."""

    ticks: int = 0
    steps: int = 0
    requests: int = 0
    refused: int = 0
    admissions: int = 0
    retractions: int = 0
    finished: int = 0
    aborted: int = 0
    failed: int = 0
    unknown_aborts: int = 0
    unknown_saves: int = 0
    """Saves that the runner said had ended, and that were not in flight."""
    step_errors: int = 0
    failed_loads: int = 0
    follows: int = 0
    """Times an admission pass let a request wait for another that was computing its prefix."""
    stalls: int = 0
    """Rows left out of a step because pages had run out."""
    prompt_tokens: int = 0
    """Of requests admitted for the first time."""
    cached_device: int = 0
    cached_host: int = 0
    cached_storage: int = 0
    resumed_tokens: int = 0
    """Found in the cache by requests that ran before: their own work, no hits."""
    computed_tokens: int = 0
    generated_tokens: int = 0
    surplus_tokens: int = 0
    """Sampled after a stop that was found a step late, or for a request that had gone; dropped."""
    fetches_skipped: int = 0
    fetches_followed: int = 0
    fetches_delayed: int = 0
    """Times a fetch had to wait because the bound on pages in flight was reached."""
    fetches_stopped: int = 0
    fetches_revoked: int = 0
    bytes_loaded: int = 0
    bytes_saved: int = 0
    bytes_stored: int = 0
    bytes_fetched: int = 0
    policy_faults: int = 0
    last_fault: str = field(default="", metadata={"text": True})

    def fault(self, what: str) -> None:
        """A policy gave an answer that cannot be used; the default was used instead."""
        self.policy_faults += 1
        self.last_fault = what

    def hit(self, cached: Cached, prompt: int) -> None:
        """A request was admitted for the first time."""
        self.prompt_tokens += prompt
        self.cached_device += cached.device
        self.cached_host += cached.host
        self.cached_storage += cached.storage

    def values(self) -> dict[str, float]:
        """All numbers by name."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self) if "text" not in entry.metadata}
