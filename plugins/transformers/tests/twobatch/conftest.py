"""A dispatcher between threads, and runners over it whose steps run as two halves."""

from __future__ import annotations

import shutil
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM, PretrainedConfig

from stepwell import Dispatched, Dispatcher, Format, Offer, Part, Traffic
from stepwell_transformers.config import TransformersConfig
from stepwell_transformers.runner import TransformersRunner
from stepwell_transformers.twobatch.turns import Turns

SMALL = dict(
    vocab_size=300,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=4,
    max_position_embeddings=512,
    initializer_range=0.15,
    bos_token_id=1,
    eos_token_id=None,
    pad_token_id=0,
)
FAMILIES: dict[str, Callable[[], PretrainedConfig]] = {
    "mixtral": lambda: transformers.MixtralConfig(**SMALL, num_local_experts=8, num_experts_per_tok=2),
    "qwen3-moe": lambda: transformers.Qwen3MoeConfig(
        **SMALL, head_dim=16, moe_intermediate_size=32, num_experts=8, num_experts_per_tok=2
    ),
    "deepseek-v3": lambda: transformers.DeepseekV3Config(
        **SMALL,
        q_lora_rank=20,
        kv_lora_rank=24,
        qk_rope_head_dim=8,
        qk_nope_head_dim=12,
        v_head_dim=16,
        moe_intermediate_size=32,
        n_routed_experts=8,
        num_experts_per_tok=2,
        n_shared_experts=1,
        n_group=4,
        topk_group=2,
        first_k_dense_replace=1,
    ),
}
WAIT_S = 30


@pytest.fixture(scope="session")
def experts_model(tiny: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a small model with experts, the same each time."""
    root = tmp_path_factory.mktemp("twobatch")

    def make(family: str) -> Path:
        if (folder := root / family).exists():
            return folder
        torch.manual_seed(5)
        model = AutoModelForCausalLM.from_config(FAMILIES[family](), dtype=torch.float32)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if name.endswith(("gate.weight", "_bias")):
                    weight.normal_(std=0.5)
        model.save_pretrained(folder)
        for path in tiny("llama").glob("tokenizer*.json"):
            shutil.copy(path, folder)
        return folder

    return make


# --- dispatch between threads ----------------------------------------------------------------------------------------


@dataclass
class Wires:
    """Between all ranks: a queue from each to each, for dispatches and for combines."""

    size: int = 1
    in_flight: int = 2
    fail: Callable[[int, str], None] = lambda rank, call: None
    """Called with every call of a rank; what it raises goes through."""
    calls: dict[int, list[str]] = field(default_factory=lambda: defaultdict(list))
    queues: dict[tuple[str, int, int], SimpleQueue[Any]] = field(default_factory=lambda: defaultdict(SimpleQueue))
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def part(self) -> Part[Dispatcher[Any]]:
        """As a config has it."""
        return Part(Offer("threads", ThreadDispatcher, Wires), self)

    def queue(self, what: str, source: int, target: int) -> SimpleQueue[Any]:
        with self.lock:
            return self.queues[what, source, target]


@dataclass
class Sent:
    number: int
    places: list[torch.Tensor]
    """By rank, which (token, choice) went there."""
    weights: torch.Tensor
    hidden: int
    counts: list[int] = field(default_factory=list)
    order: torch.Tensor | None = None


class ThreadDispatcher(Dispatcher[torch.Tensor]):
    """A double: queues stand for wires. It keeps to the number in flight that it states."""

    format = Format.SORTED

    def __init__(self, wires: Wires, context: Any) -> None:
        self._wires, self._rank, self.in_flight = wires, context.rank, wires.in_flight
        self._numbers = iter(range(10**9))
        self._under_way: set[int] = set()

    def open(self, traffic: Traffic) -> None:
        self._local = traffic.experts // self._wires.size

    def _call(self, what: str, number: int) -> None:
        self._wires.calls[self._rank].append(f"{what} {number}")
        self._wires.fail(self._rank, what)

    def _post(self, what: str, target: int, thing: object) -> None:
        self._wires.queue(what, self._rank, target).put(thing)

    def _get(self, what: str, source: int) -> Any:
        return self._wires.queue(what, source, self._rank).get(timeout=WAIT_S)

    def dispatch_start(self, tokens: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor) -> Sent:
        if len(self._under_way) == self.in_flight:
            raise RuntimeError(f"{self.in_flight} batches are in flight, and no more can be")
        sent = Sent(next(self._numbers), [], weights, tokens.shape[1])
        self._under_way.add(sent.number)
        self._call("dispatch_start", sent.number)
        for rank in range(self._wires.size):
            places = (experts // self._local == rank).nonzero()
            sent.places.append(places)
            own = experts[places[:, 0], places[:, 1]] % self._local
            self._post("there", rank, (tokens[places[:, 0]].clone(), own))
        return sent

    def dispatch_finish(self, handle: Sent) -> Dispatched[torch.Tensor]:
        self._call("dispatch_finish", handle.number)
        parts = [self._get("there", rank) for rank in range(self._wires.size)]
        tokens, experts = (torch.cat(column) for column in zip(*parts, strict=True))
        handle.counts, handle.order = [len(part[0]) for part in parts], experts.argsort(stable=True)
        return Dispatched(tokens[handle.order], torch.bincount(experts, minlength=self._local), handle)

    def combine_start(self, outputs: torch.Tensor, dispatched: Dispatched[torch.Tensor]) -> Sent:
        sent: Sent = dispatched.state
        self._call("combine_start", sent.number)
        assert sent.order is not None
        back = torch.empty_like(outputs)
        back[sent.order] = outputs
        for rank, part in enumerate(back.split(sent.counts)):
            self._post("back", rank, part)
        return sent

    def combine_finish(self, handle: Sent) -> torch.Tensor:
        self._call("combine_finish", handle.number)
        rows = torch.zeros(*handle.weights.shape, handle.hidden)
        for rank, places in enumerate(handle.places):
            rows[places[:, 0], places[:, 1]] = self._get("back", rank)
        self._under_way.remove(handle.number)
        return (rows * handle.weights[..., None]).sum(1)


# --- runners over it -------------------------------------------------------------------------------------------------


class Ranks:
    """Runners of one model, one a thread; whatever is called is called on all of them at once."""

    def __init__(self, folder: Path, place: Any, driver_of: Any, wires: Wires, **settings: Any) -> None:
        self.wires, self.logits = wires, [[] for _ in range(wires.size)]
        self._pool = ThreadPoolExecutor(wires.size)
        config = TransformersConfig(model=str(folder), dtype="float32", device="cpu", dispatch=wires.part, **settings)
        meet = (folder / f"meet-{id(self)}").as_uri()
        places = [replace(place, rank=rank, world=wires.size, meet=meet) for rank in range(wires.size)]
        self.runners = list(self._pool.map(lambda one: TransformersRunner(config, one), places))
        self.drivers = list(self._pool.map(lambda runner: driver_of(runner, 4, 64), self.runners))
        for runner, kept in zip(self.runners, self.logits, strict=True):
            self._keep(runner._executor, kept)

    def _keep(self, executor: Any, kept: list[torch.Tensor]) -> None:
        own = executor._sample

        def sample(logits: torch.Tensor, *more: Any) -> Any:
            kept.append(logits.clone())
            return own(logits, *more)

        executor._sample = sample

    def call(self, work: Callable[[Any], Any]) -> list[Any]:
        """`work(driver)`, on every rank."""
        return list(self._pool.map(work, self.drivers))

    def serve(self, *args: Any, **more: Any) -> list[list[int]]:
        """The answers, which are the same on all ranks."""
        answers = self.call(lambda driver: driver.serve(*args, **more))
        assert all(answer == answers[0] for answer in answers)
        return answers[0]

    def close(self) -> None:
        list(self._pool.map(lambda runner: runner.close(), self.runners))
        self._pool.shutdown()


@pytest.fixture
def ranks(place: Any, driver_of: Any, experts_model: Callable[[str], Path]) -> Iterator[Callable[..., Ranks]]:
    """Runners, closed afterwards."""
    made: list[Ranks] = []

    def make(family: str, wires: Wires | None = None, **settings: Any) -> Ranks:
        made.append(Ranks(experts_model(family), place, driver_of, wires or Wires(), **settings))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture(scope="session")
def new_wires() -> Callable[..., Wires]:
    return Wires


@pytest.fixture
def one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Halves that hand over to nobody from here on: the second begins when the first has ended."""
    return lambda: monkeypatch.setattr(Turns, "turn", lambda self: None)
