"""The runner: carries step plans out on a worker thread, so that the next step is planned while one runs."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from stepwell import (
    ArenaView,
    ConfigError,
    Context,
    Full,
    GroupSpec,
    ModelInfo,
    PageCopy,
    Row,
    Runner,
    Step,
    StepPlan,
    StepResult,
    TokenLogprob,
)
from stepwell_kernels import Batch, HostPages, PagePool, PageShape, RaggedRow, load_layer, save
from stepwell_transformers.codec import end_tokens
from stepwell_transformers.config import TransformersConfig
from stepwell_transformers.fingerprint import fingerprint
from stepwell_transformers.locate import locate
from stepwell_transformers.model import PagedModel, Paging
from stepwell_transformers.progress import shown
from stepwell_transformers.prove import prove
from stepwell_transformers.sampling import sample
from stepwell_transformers.slots import Slot

LAYOUT = "layers-kv-page-heads-dim-1"
CPU_CHUNK, CUDA_CHUNK = 256, 8192


class Flight(Step):
    """A step on its way through the worker."""

    def __init__(self, plan: StepPlan) -> None:
        self.plan = plan
        self.result: StepResult | None = None

    def poll(self) -> StepResult | None:
        return self.result


class TransformersRunner(Runner):
    """One model on one device."""

    def __init__(self, config: TransformersConfig, context: Context) -> None:
        device = pick_device(config.device)
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        with shown(context.log) as report:
            folder = locate(config.model, config.revision, context.state_dir, report)
        self._model = PagedModel(folder, config.model, pick_dtype(config.dtype, device), device)
        prove(self._model, config.model)
        self._memory = config.memory
        self._log = context.log
        self.preferred_chunk = config.chunk or (CPU_CHUNK if device.type == "cpu" else CUDA_CHUNK)
        self.depth = 2
        dtype = str(self._model.dtype).removeprefix("torch.")
        self.model = ModelInfo(
            name=config.model,
            fingerprint=fingerprint(folder, context.state_dir),
            kv_dtype=dtype,
            layout=LAYOUT,
            context=self._model.context,
            vocab=self._model.vocab,
            eos=end_tokens(folder),
        )
        token_bytes = self._shape(1).token_bytes
        self.groups = (GroupSpec("full", Full(), token_bytes, tuple(range(self._model.layers))),)
        self._slots: dict[int, Slot] = {}
        self._pool: PagePool | None = None
        self._host: HostPages | None = None
        self._wake: Callable[[], None] = lambda: None
        self._plans: queue.SimpleQueue[Flight | None] = queue.SimpleQueue()
        self._worker = threading.Thread(target=self._work, name="stepwell-steps", daemon=True)

    def _shape(self, page_size: int) -> PageShape:
        model = self._model
        return PageShape(model.layers, page_size, model.kv_heads, model.head_dim, model.dtype)

    def open(self, page_size: int, pages: Mapping[str, int], slots: int, wake: Callable[[], None]) -> None:
        shape = self._shape(page_size)
        try:
            self._pool = PagePool(shape, pages["full"], self._model.device)
        except RuntimeError as error:
            need = f"{pages['full']} pages take {pages['full'] * shape.page_bytes / 2**30:.2f} GiB"
            raise ConfigError(
                f"{need}, which {self._model.device} does not have: lower cache.device_pages or cache.device_gib"
            ) from error
        self._wake = wake
        self._worker.start()

    def pin(self, arena: ArenaView) -> None:
        assert self._pool is not None
        offset, stride, _ = arena.slots(0)
        slots = (arena.nbytes - offset) // stride
        self._host = HostPages(arena.memory, offset, stride, slots, self._pool.shape)
        if self._model.device.type == "cuda":
            self._host.pin()

    def launch(self, plan: StepPlan) -> Step:
        flight = Flight(plan)
        self._plans.put(flight)
        return flight

    def budget(self) -> int | None:
        if self._model.device.type != "cuda":
            return None
        free, total = torch.cuda.mem_get_info(self._model.device)
        return max(0, int(free - (1 - self._memory) * total))

    def close(self) -> None:
        self._plans.put(None)
        if self._worker.is_alive():
            self._worker.join(timeout=30)
        if self._host is not None:
            self._host.unpin()
        if self._host is not None:
            self._host.unpin()
        self._pool = self._host = None

    # --- on the worker thread ----------------------------------------------------------------------------------

    def _work(self) -> None:
        with torch.inference_mode():
            while (flight := self._plans.get()) is not None:
                try:
                    flight.result = self._carry_out(flight.plan)
                except Exception as error:
                    flight.result = StepResult(flight.plan.number, error=f"{type(error).__name__}: {error}")
                self._wake()

    def _carry_out(self, plan: StepPlan) -> StepResult:
        for slot in plan.closes:
            self._slots.pop(slot, None)
        for opened in plan.opens:
            self._slots[opened.slot] = Slot(opened)
        for edit in plan.tables:
            self._slots[edit.slot].edit(edit)
        copies = {copy.id: self._save(copy) for copy in plan.saves}
        if not plan.rows:
            loads = _Loads(self, plan.loads)
            for layer in range(self._model.layers):
                loads.before_layer(layer)
            return StepResult(plan.number, copies=copies | loads.results())
        return self._compute(plan, copies)

    def _compute(self, plan: StepPlan, copies: dict[int, tuple[bool, ...]]) -> StepResult:
        assert self._pool is not None
        device, rows = self._model.device, plan.rows
        slots = [self._slots[row.slot] for row in rows]
        tokens = np.concatenate([_tokens(row, slot) for row, slot in zip(rows, slots, strict=True)])
        positions = np.concatenate([np.arange(row.start, row.start + row.count) for row in rows])
        ragged = [RaggedRow(row.start, row.count, slot.table) for row, slot in zip(rows, slots, strict=True)]
        loads = _Loads(self, plan.loads)
        paging = Paging(self._pool, Batch(ragged, self._pool.shape.page_size, device), loads.before_layer)
        ends = np.cumsum([row.count for row in rows]) - 1
        sampling = [i for i, row in enumerate(rows) if row.sample]
        logits = self._model.forward(
            torch.from_numpy(tokens.astype(np.int64)).to(device),
            torch.from_numpy(positions).to(device),
            paging,
            torch.from_numpy(ends[sampling]).to(device),
        )
        answers, logprobs = self._sample(logits, sampling, slots)
        return StepResult(plan.number, 1, answers, logprobs, copies | loads.results())

    def _sample(
        self, logits: torch.Tensor, sampling: Sequence[int], slots: Sequence[Slot]
    ) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[TokenLogprob, ...], ...] | None]:
        answers: list[tuple[int, ...]] = [()] * len(slots)
        found: list[tuple[TokenLogprob, ...]] = [()] * len(slots)
        if sampling:
            tokens, logprobs = sample(logits, [slots[i].draw() for i in sampling])
            for i, token, logprob in zip(sampling, tokens, logprobs, strict=True):
                slots[i].sampled(token)
                answers[i] = (token,)
                found[i] = () if logprob is None else (logprob,)
        return tuple(answers), tuple(found) if any(found) else None

    def _save(self, copy: PageCopy) -> tuple[bool, ...]:
        """Copy device pages to host; a fault costs these pages, not the step."""
        return (self._copied(copy, save),) * len(copy.device)

    def _load(self, copy: PageCopy, layer: int) -> bool:
        """Copy a layer of host pages to the device; a fault costs these pages, and the requests that wait for them."""
        return self._copied(copy, lambda pool, host, *ids: load_layer(pool, host, layer, *ids))

    def _copied(self, copy: PageCopy, move: Callable[[PagePool, HostPages, torch.Tensor, torch.Tensor], None]) -> bool:
        try:
            if self._pool is None or self._host is None:
                raise RuntimeError("there is no host tier")
            move(self._pool, self._host, self._on_device(copy), _ids(copy.host))
        except (RuntimeError, IndexError) as error:
            self._log.warning("a copy of %d pages failed: %s", len(copy.device), error)
            return False
        return True

    def _on_device(self, copy: PageCopy) -> torch.Tensor:
        return _ids(copy.device).to(self._model.device)


class _Loads:
    """The loads of one step: each layer's copies run just before the layer reads its pages."""

    def __init__(self, runner: TransformersRunner, copies: Sequence[PageCopy]) -> None:
        self._runner = runner
        self._copies = copies
        self._good = dict.fromkeys((copy.id for copy in copies), True)

    def before_layer(self, layer: int) -> None:
        for copy in self._copies:
            self._good[copy.id] = self._good[copy.id] and self._runner._load(copy, layer)

    def results(self) -> dict[int, tuple[bool, ...]]:
        """Which pages came, by copy."""
        return {copy.id: (self._good[copy.id],) * len(copy.device) for copy in self._copies}


def _tokens(row: Row, slot: Slot) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    if row.tokens is None:
        return np.array([slot.last], dtype=np.int32)
    return np.frombuffer(row.tokens, dtype=np.int32)


def _ids(ids: np.ndarray[tuple[int, ...], np.dtype[np.int32]]) -> torch.Tensor:
    return torch.from_numpy(ids.astype(np.int64))


def pick_device(name: str) -> torch.device:
    """The device that a config means; ConfigError where this machine does not have it."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"runner.device: {name!r} is no device; use auto, cpu or cuda") from error
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"runner.device: {name!r} is not supported; use auto, cpu or cuda")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"runner.device: {name!r} is not there; this machine has {torch.cuda.device_count()} CUDA devices"
        )
    return device


def pick_dtype(name: str, device: torch.device) -> torch.dtype | None:
    """The dtype that a config means; None: the weights' own."""
    if name == "auto":
        return torch.float32 if device.type == "cpu" else None
    return torch.float32 if name == "float32" else torch.bfloat16
