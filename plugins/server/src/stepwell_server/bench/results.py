"""What a bench found, as `--json` prints it. `--json-schema` prints the schema that msgspec makes of it."""

from __future__ import annotations

import msgspec

FORMAT = "stepwell.bench.serve/1"
"""Goes up where a field changes its meaning or goes; new fields alone leave it."""


class Spread(msgspec.Struct, frozen=True):
    """A time in seconds over all requests of a level."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: float


class Client(msgspec.Struct, frozen=True):
    """How the measuring client did: figures of a client that did not keep up say little of the server."""

    lag_p99_s: float
    """How late the event loop came, beyond the millisecond of its timer."""
    lag_max_s: float
    late_p99_s: float
    """How long after they were due requests were sent."""
    late_max_s: float
    cpu_share: float | None
    """Of one core; null where the engine runs in the same process."""
    most_running: int
    """Most requests under way at once."""
    kept_up: bool
    doubts: list[str]
    """Why not."""


class Price(msgspec.Struct, frozen=True):
    """What a million tokens take at this level; `total` counts prompt and answer tokens."""

    gpu_seconds_per_million_output: float
    gpu_seconds_per_million_total: float | None
    """Null where the server does not tell prompt tokens."""
    per_million_output: float | None
    """In the currency of --gpu-price; null without it."""
    per_million_total: float | None


class Level(msgspec.Struct, frozen=True):
    """One level of load. Times and tokens are of requests that were answered to the end."""

    kind: str
    """`concurrency`, `rate` (requests a second) or `speed` (of a trace)."""
    value: float
    seconds: float
    """For which was counted."""
    completed: int
    failed: int
    failures: dict[str, int]
    """How many, by reason."""
    cut: bool
    """Broken off by Ctrl-C: the figures are of what had ended by then."""
    prompt_tokens: int | None
    """Null where the server does not tell."""
    cached_tokens: int | None
    """Of the prompt tokens; null where the server does not tell."""
    output_tokens: int
    requests_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float | None
    """Prompts and answers; prompts count when their first token comes."""
    tokens_per_arrival: float
    """Above 1 where several tokens come at once; then `itl_s` is between arrivals, `tpot_s` still a token's."""
    ttft_s: Spread | None
    """To the first token."""
    itl_s: Spread | None
    """Between one arrival and the next, over all answers."""
    tpot_s: Spread | None
    """Each answer's mean of a token after the first."""
    e2e_s: Spread | None
    """To the last token."""
    client: Client
    price: Price | None = None
    """Null where neither --gpus nor --gpu-price was given."""


class Target(msgspec.Struct, frozen=True):
    """What was measured."""

    kind: str
    """`process`: an engine in this process; `served`: a `stepwell serve` of its own; `url`: a server that ran."""
    model: str
    url: str | None
    prompts_as: str
    """`tokens`, `text` or `chat`."""
    summary: list[str]
    """What the engine says was put together; empty behind a URL."""


class Machine(msgspec.Struct, frozen=True):
    """Where the client ran, and the engine unless it is behind a URL."""

    platform: str
    cpu: str
    cores: int
    memory_gib: float
    devices: list[str]


class Setting(msgspec.Struct, frozen=True):
    """A setting that somebody made."""

    name: str
    value: str
    origin: str


class Report(msgspec.Struct, frozen=True):
    """Everything."""

    format: str
    date: str
    """UTC, ISO 8601."""
    command: list[str]
    versions: dict[str, str]
    machine: Machine
    target: Target
    config: list[Setting]
    workload: str
    seed: str
    warmup: int
    notes: list[str]
    levels: list[Level]

    @property
    def clean(self) -> bool:
        """Whether all was answered."""
        return bool(self.levels) and all(level.completed and not level.failed for level in self.levels)
