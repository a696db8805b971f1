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
    ModelInfo,
    PageCopy,
    Row,
    Runner,
    Step,
    StepPlan,
    StepResult,
    TokenLogprob,
)
from stepwell_kernels import HostPages, PagePool, RaggedRow, load_layer, save
from stepwell_transformers.codec import end_tokens
from stepwell_transformers.config import TransformersConfig
from stepwell_transformers.fingerprint import fingerprint
from stepwell_transformers.locate import locate
from stepwell_transformers.model import PagedModel
from stepwell_transformers.paging import GroupStep, PlainPaging, lay_out
from stepwell_transformers.progress import shown
from stepwell_transformers.prove import prove
from stepwell_transformers.random_weights import wanted
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
        random = wanted(config.model)
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
            fingerprint=random.fingerprint(device) if random else fingerprint(folder, context.state_dir),
            kv_dtype=dtype,
            layout=LAYOUT,
            context=self._model.context,
            vocab=self._model.vocab,
            eos=end_tokens(folder),
        )
        self.groups = self._model.groups
        self._slots: dict[int, Slot] = {}
        self._pools: list[PagePool] = []
        self._hosts: list[HostPages] = []
        self._wake: Callable[[], None] = lambda: None
        self._plans: queue.SimpleQueue[Flight | None] = queue.SimpleQueue()
        self._worker = threading.Thread(target=self._work, name="stepwell-steps", daemon=True)

    def open(self, page_size: int, pages: Mapping[str, int], slots: int, wake: Callable[[], None]) -> None:
        shapes, counts = self._model.shapes(page_size), [pages[group.name] for group in self.groups]
        try:
            for shape, count in zip(shapes, counts, strict=True):
                self._pools.append(PagePool(shape, count, self._model.device))
        except RuntimeError as error:
            nbytes = sum(shape.page_bytes * count for shape, count in zip(shapes, counts, strict=True))
            raise ConfigError(
                f"{' + '.join(map(str, counts))} pages take {nbytes / 2**30:.2f} GiB, which {self._model.device} "
                "does not have: lower cache.device_pages or cache.device_gib"
            ) from error
        self._wake = wake
        self._worker.start()

    def pin(self, arena: ArenaView) -> None:
        places = [arena.slots(group) for group in range(len(self.groups))]
        ends = [*(offset for offset, _, _ in places[1:]), arena.nbytes]
        for pool, (offset, stride, _), end in zip(self._pools, places, ends, strict=True):
            self._hosts.append(HostPages(arena.memory, offset, stride, (end - offset) // stride, pool.shape))
        if self._model.device.type == "cuda":
            self._hosts[0].pin()  # all of the arena's memory

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
        for host in self._hosts:
            host.unpin()
        self._pools, self._hosts = [], []

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
            self._slots[opened.slot] = Slot(opened, len(self.groups))
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
        device, rows = self._model.device, plan.rows
        slots = [self._slots[row.slot] for row in rows]
        tokens = np.concatenate([_tokens(row, slot) for row, slot in zip(rows, slots, strict=True)])
        positions = np.concatenate([np.arange(row.start, row.start + row.count) for row in rows])
        places = torch.from_numpy(positions).to(device)
        loads = _Loads(self, plan.loads)
        paging = PlainPaging(self._group_steps(rows, slots), self._model.seats, places, loads.before_layer)
        ends = np.cumsum([row.count for row in rows]) - 1
        sampling = [i for i, row in enumerate(rows) if row.sample]
        logits = self._model.forward(
            torch.from_numpy(tokens.astype(np.int64)).to(device),
            places,
            paging,
            torch.from_numpy(ends[sampling]).to(device),
        )
        answers, logprobs = self._sample(logits, sampling, slots)
        return StepResult(plan.number, 1, answers, logprobs, copies | loads.results())

    def _group_steps(self, rows: Sequence[Row], slots: Sequence[Slot]) -> list[GroupStep]:
        found = []
        for number, (group, pool) in enumerate(zip(self.groups, self._pools, strict=True)):
            ragged = [
                RaggedRow(row.start, row.count, slot.table(number)) for row, slot in zip(rows, slots, strict=True)
            ]
            batch = lay_out(ragged, group.need, pool.shape.page_size, self._model.device)
            found.append(GroupStep(pool, batch, group.need))
        return found

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

    def _load(self, copy: PageCopy, index: int) -> bool:
        """Copy a group's layer from host to device; a fault costs these pages, and the requests that wait for them."""
        return self._copied(copy, lambda pool, host, *ids: load_layer(pool, host, index, *ids))

    def _copied(self, copy: PageCopy, move: Callable[[PagePool, HostPages, torch.Tensor, torch.Tensor], None]) -> bool:
        try:
            if not self._hosts:
                raise RuntimeError("there is no host tier")
            move(self._pools[copy.group], self._hosts[copy.group], self._on_device(copy), _ids(copy.host))
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
        self._seats = runner._model.seats
        self._good = dict.fromkeys((copy.id for copy in copies), True)

    def before_layer(self, layer: int) -> None:
        seat = self._seats[layer]
        for copy in self._copies:
            if copy.group == seat.group:
                self._good[copy.id] = self._good[copy.id] and self._runner._load(copy, seat.index)

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
