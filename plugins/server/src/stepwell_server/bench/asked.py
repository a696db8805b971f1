"""From the options of the command to what is to be done. Every mistake is one sentence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click

from stepwell.config import environment
from stepwell.errors import ConfigError
from stepwell_server.bench.drive import Plan, Step
from stepwell_server.bench.target import Manner
from stepwell_server.bench.workloads import Lengths, Sessions, Shared, Trace, Unshared, Workload

MOST_TOKENS = 2**24
MOST_LEVEL = 1_000_000
DEFAULT_LEVELS = (1, 2, 4, 8, 16)


def lengths(text: str) -> Lengths:
    """`512`, or `256-1024`."""
    first, _, last = text.partition("-")
    try:
        found = Lengths(int(first), int(last or first))
    except ValueError:
        raise click.BadParameter(f"{text!r} is neither a number of tokens nor a range such as 256-1024") from None
    if not 1 <= found.least <= found.most <= MOST_TOKENS:
        raise click.BadParameter(f"{text!r} is no range from 1 token up")
    return found


def levels(text: str) -> tuple[float, ...]:
    """Numbers above zero, commas between."""
    return _numbers(text, float, "no list of numbers such as 0.5,1,2")


def whole_levels(text: str) -> tuple[float, ...]:
    """Whole numbers above zero, commas between."""
    return _numbers(text, int, "no list of whole numbers such as 1,2,4")


def _numbers(text: str, kind: Callable[[str], float], wrong: str) -> tuple[float, ...]:
    try:
        found = tuple(float(kind(one)) for one in text.split(","))
    except ValueError:
        raise click.BadParameter(f"{text!r} is {wrong}") from None
    if not all(0 < level < MOST_LEVEL for level in found):
        raise click.BadParameter(f"{text!r}: every number is above 0 and below {MOST_LEVEL:,}")
    return found


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The options, as they were given."""

    path: str | None
    sets: tuple[str, ...]
    model: str | None
    http: bool
    url: str | None
    api_key_env: str | None
    send: str | None
    vocab: int | None
    prompts: str | None
    trace: str | None
    block_tokens: int
    input_tokens: Lengths
    output_tokens: Lengths
    groups: int
    prefix_tokens: int
    turns: int
    concurrency: tuple[float, ...] | None
    rate: tuple[float, ...] | None
    speed: tuple[float, ...] | None
    requests: int | None
    seconds: float | None
    warmup: int
    seed: str
    temperature: float
    ignore_eos: bool
    timeout: float
    gpus: int | None
    gpu_price: float | None

    def judge(self) -> None:
        """Refuse what does not go together."""
        if self.url is not None and (self.path or self.sets or self.http):
            raise ConfigError("--url measures a server that runs; --config, --set and --http are for one of its own")
        if self.url is None and self.api_key_env is not None:
            raise ConfigError("--api-key-env is for --url")
        if self.url is None and not self.http and self.send not in (None, "tokens"):
            raise ConfigError(f"--send {self.send} needs a server: add --http, or --url")
        if self.vocab is not None and self.prompts_as != "tokens":
            raise ConfigError("--vocab is for --send tokens")
        given = [
            name
            for name, value in (("--concurrency", self.concurrency), ("--rate", self.rate), ("--speed", self.speed))
            if value is not None
        ]
        if len(given) > 1:
            raise ConfigError(f"{' and '.join(given)} exclude each other")
        traced = self.kind == "trace"
        if traced != (self.trace is not None):
            raise ConfigError(
                "--prompts trace and --trace FILE go together" if traced else "--trace is for --prompts trace"
            )
        if traced and self.rate is not None:
            raise ConfigError("a trace has its own times: --speed changes them, --concurrency leaves them out")
        if not traced and self.speed is not None:
            raise ConfigError("--speed is for --trace")
        if self.kind == "sessions" and self.rate is not None:
            raise ConfigError("sessions wait for their answers, so they have no --rate; use --concurrency")
        if self.kind == "sessions" and (self.url is not None or self.http) and self.prompts_as == "tokens":
            raise ConfigError(
                "a server does not tell the ids of its answers, on which sessions go on: --send text or chat"
            )

    @property
    def kind(self) -> str:
        """Of the workload."""
        return self.prompts or ("trace" if self.trace else "random")

    @property
    def prompts_as(self) -> str:
        """How prompts are put."""
        return self.send or ("text" if self.url or self.http else "tokens")

    def manner(self) -> Manner:
        """How each request is put."""
        return Manner(self.temperature, self.ignore_eos, self.timeout)

    def made(self) -> dict[str, object]:
        """Settings of an engine of its own that have options of their own."""
        return {} if self.model is None else {"runner.model": self.model}

    def key(self) -> str | None:
        """The API key that a variable holds."""
        if self.api_key_env is None:
            return None
        key = environment().get(self.api_key_env)
        if key and not (key.isascii() and key.isprintable()):
            raise ConfigError(
                f"--api-key-env {self.api_key_env}: what it holds is no key, but has line breaks or the like"
            )
        if not key:
            raise ConfigError(
                f"--api-key-env {self.api_key_env}: there is no such environment variable, or it is empty"
            )
        return key

    def plan(self) -> Plan:
        """What to do at each level."""
        return Plan(
            workload=self._workload(),
            steps=self._steps(),
            requests=self.requests,
            seconds=self.seconds,
            warmup=self.warmup,
            seed=self.seed,
            gpus=self.gpus or (None if self.gpu_price is None else 1),
            gpu_price=self.gpu_price,
        )

    def _workload(self) -> Workload:
        match self.kind:
            case "shared":
                return Shared(self.groups, self.prefix_tokens, self.input_tokens, self.output_tokens)
            case "sessions":
                return Sessions(self.turns, self.input_tokens, self.output_tokens)
            case "trace":
                assert self.trace is not None
                return Trace.read(Path(self.trace), self.block_tokens, self.requests)
        return Unshared(self.input_tokens, self.output_tokens)

    def _steps(self) -> tuple[Step, ...]:
        if self.rate is not None:
            return tuple(Step("rate", rate) for rate in self.rate)
        if self.kind == "trace" and self.concurrency is None:
            return tuple(Step("speed", speed) for speed in self.speed or (1.0,))
        return tuple(Step("concurrency", clients) for clients in self.concurrency or DEFAULT_LEVELS)
