"""Small models with random weights, a planner made by hand, and the ground truth beside them."""

from __future__ import annotations

import logging
import mmap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    Cohere2Config,
    Gemma2Config,
    Gemma3TextConfig,
    GptOssConfig,
    Llama4TextConfig,
    LlamaConfig,
    MiMoV2FlashConfig,
    MistralConfig,
    MixtralConfig,
    Olmo3Config,
    PretrainedConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

from stepwell import PageCopy, Row, Sampling, SlotOpen, StepPlan, StepResult, TableEdit
from stepwell_transformers.config import TransformersConfig
from stepwell_transformers.runner import TransformersRunner

VOCAB = 300
TIE = 1e-4
SMALL = dict(
    vocab_size=VOCAB,
    hidden_size=64,
    intermediate_size=96,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=512,
    initializer_range=0.15,
    bos_token_id=1,
    eos_token_id=None,
    pad_token_id=0,
)
ROPES = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 10000.0},
}
KINDS: dict[str, Callable[[], PretrainedConfig]] = {
    "llama": lambda: LlamaConfig(**SMALL, num_hidden_layers=2),
    "qwen2": lambda: Qwen2Config(**SMALL, num_hidden_layers=2),
    "qwen3": lambda: Qwen3Config(**SMALL, num_hidden_layers=3, head_dim=32),
    "mistral": lambda: MistralConfig(**SMALL, num_hidden_layers=2, sliding_window=None),
    "mixtral": lambda: MixtralConfig(**SMALL, num_hidden_layers=2, num_local_experts=4, num_experts_per_tok=2),
    "qwen3-moe": lambda: Qwen3MoeConfig(
        **SMALL, num_hidden_layers=2, head_dim=16, moe_intermediate_size=32, num_experts=4, num_experts_per_tok=2
    ),
    "gpt-oss": lambda: GptOssConfig(
        **SMALL, num_hidden_layers=4, head_dim=16, sliding_window=9, num_local_experts=4, num_experts_per_tok=2
    ),
    "gemma2": lambda: Gemma2Config(
        **SMALL,
        num_hidden_layers=4,
        head_dim=16,
        sliding_window=12,
        query_pre_attn_scalar=24,
        attn_logit_softcapping=3.0,
    ),
    "gemma3": lambda: Gemma3TextConfig(
        **SMALL, num_hidden_layers=7, head_dim=16, sliding_window=16, query_pre_attn_scalar=24, rope_parameters=ROPES
    ),
    "mistral-sliding": lambda: MistralConfig(**SMALL, num_hidden_layers=2, sliding_window=11),
    "llama4": lambda: Llama4TextConfig(
        **SMALL,
        num_hidden_layers=4,
        head_dim=16,
        attention_chunk_size=24,
        intermediate_size_mlp=96,
        num_local_experts=4,
        floor_scale=7,
        attn_scale=0.5,
    ),
    "mimo": lambda: MiMoV2FlashConfig(
        **SMALL,
        num_hidden_layers=4,
        head_dim=24,
        v_head_dim=16,
        swa_num_key_value_heads=4,
        sliding_window=9,
        layer_types=["full_attention", "sliding_attention", "sliding_attention", "sliding_attention"],
        moe_intermediate_size=32,
        n_routed_experts=4,
        num_experts_per_tok=2,
    ),
    "qwen3-sliding": lambda: Qwen3Config(
        **SMALL, num_hidden_layers=3, head_dim=32, use_sliding_window=True, sliding_window=8, max_window_layers=1
    ),
    "qwen2-types": lambda: Qwen2Config(
        **SMALL,
        num_hidden_layers=3,
        use_sliding_window=True,
        sliding_window=13,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    ),
    "cohere2": lambda: Cohere2Config(**SMALL, num_hidden_layers=4, sliding_window=10),
    "olmo3": lambda: Olmo3Config(**SMALL, num_hidden_layers=4, sliding_window=14),
}


@dataclass(frozen=True)
class Place:
    """A Context."""

    state_dir: Path
    device: str = "cpu"
    rank: int = 0
    world: int = 1
    meet: str = ""
    group: int = 0
    groups: int = 1
    commons: str = ""
    clock: Callable[[], float] = time.monotonic
    log: logging.Logger = field(default_factory=lambda: logging.getLogger("stepwell.transformers"))


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Small models are faster so, and do not crowd a small machine."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("state"))


def make_model(folder: Path, kind: str, seed: int = 7) -> Path:
    """A small model with random weights, whose tokenizer has a token for each byte."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(KINDS[kind](), dtype=torch.float32)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 1 and "norm" in name:
                weight.uniform_(0.5, 1.5)
            elif name.endswith(("sinks", "_bias", "router.bias")):
                weight.normal_(std=0.5)
    model.save_pretrained(folder)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({"<s>": 0, "</s>": 1, **{letter: at for at, letter in enumerate(letters, 2)}}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>").save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def new_model() -> Callable[..., Path]:
    return make_model


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a small model, the same each time."""
    root = tmp_path_factory.mktemp("models")
    return lambda kind: root / kind if (root / kind).exists() else make_model(root / kind, kind)


@dataclass(frozen=True)
class Truth:
    """What transformers' generate says, and how far its best logit was ahead each time."""

    tokens: tuple[int, ...]
    leads: tuple[float, ...]

    def check(self, got: Sequence[int]) -> None:
        """Equal, up to the first place at which the two best logits are as good as equal."""
        assert len(got) == len(self.tokens)
        for at, (mine, theirs) in enumerate(zip(got, self.tokens, strict=True)):
            if mine != theirs:
                assert self.leads[at] <= TIE, f"token {at}: {mine}, not {theirs}, which led by {self.leads[at]}"
                return


@pytest.fixture(scope="session")
def truth() -> Callable[[Path, Sequence[int], int], Truth]:
    loaded: dict[Path, torch.nn.Module] = {}
    known: dict[tuple[Path, tuple[int, ...], int], Truth] = {}

    def say(folder: Path, prompt: Sequence[int], count: int) -> Truth:
        key = (folder, tuple(prompt), count)
        if key not in known:
            if folder not in loaded:
                # Eager, since other attention of that library may leave sinks and caps out without a word.
                model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
                loaded[folder] = model.eval()
            ids = torch.tensor([list(prompt)])
            out = loaded[folder].generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=count,
                eos_token_id=None,
                output_logits=True,
                return_dict_in_generate=True,
            )
            best = torch.stack(out.logits)[:, 0].topk(2, dim=-1).values
            leads = tuple((best[:, 0] - best[:, 1]).tolist())
            known[key] = Truth(tuple(out.sequences[0, len(prompt) :].tolist()), leads)
        return known[key]

    return say


class Arena:
    """Host memory with as many slots for each group; an ArenaView."""

    fd = -1

    def __init__(self, slots: int, payloads: Sequence[int]) -> None:
        self._slots, end = [], 0
        for payload in payloads:
            self._slots.append((end, -(-(payload + 64) // 512) * 512, payload))
            end += slots * self._slots[-1][1]
        self.stride = self._slots[0][1]
        self._map = mmap.mmap(-1, end)
        self.memory = memoryview(self._map)
        self.address = int(np.frombuffer(self._map, np.uint8).ctypes.data)
        self.nbytes = len(self.memory)

    def slots(self, group: int) -> tuple[int, int, int]:
        return self._slots[group]

    def parts(self, group: int) -> tuple[int, int]:
        return 1, self.slots(group)[1]


class Driver:
    """Plans steps by hand, two in flight, over page ids in random order."""

    def __init__(self, runner: TransformersRunner, page_size: int, pages: int = 0, host: int = 0) -> None:
        self.runner, self.page_size = runner, page_size
        pages = pages or 1024 // page_size + 32
        names = [group.name for group in runner.groups]
        self.frees = [
            np.random.default_rng(3 + i).permutation(pages).astype(np.int32).tolist() for i in range(len(names))
        ]
        self.free = self.frees[0]
        self._news = threading.Event()
        self._number = 0
        runner.open(page_size, dict.fromkeys(names, pages), 64, self._news.set)
        self.arena = Arena(host, [group.token_bytes * page_size for group in runner.groups]) if host else None
        if self.arena is not None:
            runner.pin(self.arena)

    def pages(self, tokens: int, group: int = 0) -> np.ndarray:
        """New pages for so many tokens."""
        return np.array([self.frees[group].pop() for _ in range(-(-tokens // self.page_size))], np.int32)

    def advance(self, job: _Job, start: int, end: int) -> list[TableEdit]:
        """Pages for the tokens up to `end`; those that no token from `start` on needs are let go of, and used again."""
        edits = []
        for number, (group, table) in enumerate(zip(self.runner.groups, job.tables, strict=True)):
            for page in range(group.need.lo(start) // self.page_size):
                if table[page] >= 0:
                    self.frees[number].insert(0, table[page])
                    table[page] = -1
                    edits.append(TableEdit(job.slot, number, page, np.array([-1], np.int32)))
            new = self.pages(end - len(table) * self.page_size, number)
            if len(new):
                edits.append(TableEdit(job.slot, number, len(table), new))
                table += new.tolist()
        return edits

    def launch(self, **plan: object):
        self._number += 1
        return self.runner.launch(StepPlan(self._number, **plan))

    def wait(self, step, *, error: bool = False) -> StepResult:
        deadline = time.monotonic() + 60
        while (result := step.poll()) is None:
            assert time.monotonic() < deadline, "the step does not end"
            self._news.wait(1)
            self._news.clear()
        assert (result.error is not None) == error, result.error
        return result

    def step(self, *, error: bool = False, **plan: object) -> StepResult:
        return self.wait(self.launch(**plan), error=error)

    def serve(
        self,
        prompts: Sequence[Sequence[int]],
        new: int,
        chunk: int = 512,
        budget: int = 512,
        sampling: Sampling | Sequence[Sampling] = Sampling(),  # noqa: B008 - frozen
        stagger: int = 0,
    ) -> list[list[int]]:
        """Answer prompts together: chunks of prompts beside decodes; prompt number n joins at step n * stagger."""
        jobs = [_Job(i, list(prompt), new) for i, prompt in enumerate(prompts)]
        kinds = [sampling] * len(jobs) if isinstance(sampling, Sampling) else list(sampling)
        flights: list[tuple[object, list[_Job]]] = []
        turn = 0
        while any(job.planned < job.total for job in jobs) or flights:
            rows, opens, tables, riders, left = [], [], [], [], budget
            for job in jobs:
                if job.planned >= job.total or turn < job.slot * stagger:
                    continue
                count = min(chunk, len(job.prompt) - job.planned, left)
                if job.planned == 0 and count > 0:
                    prompt = np.array(job.prompt, np.int32).tobytes()
                    opens.append(SlotOpen(job.slot, kinds[job.slot], prompt, 0))
                    job.tables = [[] for _ in self.runner.groups]
                if job.planned >= len(job.prompt):
                    tables += self.advance(job, job.planned, job.planned + 1)
                    rows.append(Row(job.slot, job.planned, 1, None, True))
                    job.planned += 1
                    riders.append(job)
                elif count > 0:
                    part = np.array(job.prompt[job.planned : job.planned + count], np.int32).tobytes()
                    left -= count
                    tables += self.advance(job, job.planned, job.planned + count)
                    start, job.planned = job.planned, job.planned + count
                    rows.append(Row(job.slot, start, count, part, job.planned == len(job.prompt)))
                    riders.append(job)
            turn += 1
            if rows:
                plan = dict(rows=tuple(rows), opens=tuple(opens), tables=tuple(tables))
                flights.append((self.launch(**plan), riders))
            if len(flights) == self.runner.depth or not any(job.planned < job.total for job in jobs):
                step, seats = flights.pop(0)
                for job, tokens in zip(seats, self.wait(step).tokens, strict=True):
                    job.answer += tokens
        self.step(closes=tuple(job.slot for job in jobs))
        for job in jobs:
            for free, table in zip(self.frees, job.tables, strict=True):
                free += [page for page in table if page >= 0]
        return [job.answer for job in jobs]


class _Job:
    def __init__(self, slot: int, prompt: list[int], new: int) -> None:
        self.slot, self.prompt = slot, prompt
        self.total = len(prompt) + new - 1
        """Tokens that are computed: the last one sampled is not."""
        self.planned = 0
        self.answer: list[int] = []
        self.tables: list[list[int]] = []


@pytest.fixture
def drive(place: Place) -> Iterator[Callable[..., Driver]]:
    """A runner on a small model, with its driver; closed afterwards."""
    runners: list[TransformersRunner] = []

    def make(folder: Path, page_size: int = 16, host: int = 0, pages: int = 0, **settings: object) -> Driver:
        settings = {"model": str(folder), "dtype": "float32", "device": "cpu", **settings}
        runners.append(TransformersRunner(TransformersConfig(**settings), place))
        return Driver(runners[-1], page_size, pages, host)

    yield make
    for runner in runners:
        runner.close()


@pytest.fixture(scope="session")
def driver_of() -> Callable[..., Driver]:
    """A driver of a runner that was made by other means."""
    return lambda runner, page_size, host=0: Driver(runner, page_size, 0, host)


def prompts(*lengths: int, seed: int = 0) -> list[list[int]]:
    """Random prompts of these lengths."""
    random = np.random.default_rng(seed)
    return [random.integers(2, VOCAB, length).tolist() for length in lengths]


@pytest.fixture(scope="session")
def make_prompts() -> Callable[..., list[list[int]]]:
    return prompts


@pytest.fixture(scope="session")
def page_copy() -> Callable[..., PageCopy]:
    def make(number: int, device: Sequence[int], host: Sequence[int]) -> PageCopy:
        return PageCopy(number, 0, np.array(device, np.int32), np.array(host, np.int32))

    return make
