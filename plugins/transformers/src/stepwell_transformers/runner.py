"""The runner: a model, its page pools, and the executor that carries step plans out on its device."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from stepwell import ArenaView, ConfigError, Context, ModelInfo, PagedAttention, Part, Runner, Step, StepPlan
from stepwell_kernels import HostPages, PagePool, PageShape
from stepwell_kernels.collective import Group, join
from stepwell_transformers.codec import end_tokens
from stepwell_transformers.config import TransformersConfig
from stepwell_transformers.cuda.exact import exact_products
from stepwell_transformers.cuda.library import Library
from stepwell_transformers.executor import Executor
from stepwell_transformers.experts.asked import Asked
from stepwell_transformers.experts.place import ExpertPlace, together
from stepwell_transformers.fingerprint import fingerprint
from stepwell_transformers.host_memory import populate, refused
from stepwell_transformers.locate import locate
from stepwell_transformers.memory import Device, Share, check_weights, gib, made_bytes
from stepwell_transformers.model import PagedModel
from stepwell_transformers.plain import PlainExecutor
from stepwell_transformers.profile import needed, share_of
from stepwell_transformers.progress import shown
from stepwell_transformers.prove import prove
from stepwell_transformers.random_weights import wanted
from stepwell_transformers.rebalance import Rebalancing, rebalancing_of
from stepwell_transformers.rebalance.assemble import beside_on_cuda
from stepwell_transformers.rebalance.stages import at_once
from stepwell_transformers.together import Company, Together
from stepwell_transformers.twobatch import HostWatch, overlap_of

LAYOUT = "layers-kv-page-heads-dim-1"
CPU_CHUNK, CUDA_CHUNK = 256, 8192
MEET_S = 1800.0
"""Seconds that ranks wait for each other, at most: as long as any start takes. Who drives them gives up before that."""
ROWS = 256
"""Requests of a step whose working memory is kept free."""


class TransformersRunner(Runner):
    """One model on one device."""

    def __init__(self, config: TransformersConfig, context: Context) -> None:
        device = pick_device(own_device(config.device, context))
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        self._config, self._log, self._cache = config, context.log, context.state_dir / "kernels"
        random = wanted(config.model)
        with current(device), ExitStack() as undo:
            if device.type == "cuda":
                undo.enter_context(exact_products())
            ranks = context.rank, context.world
            group = join(context.meet, *ranks, device, MEET_S, one_shot=config.one_shot, log=context.log)
            undo.callback(group.close)
            with shown(context.log) as report:
                folder = locate(config.model, config.revision, context.state_dir, report)
                dtype = pick_dtype(config.dtype, device)
                if device.type == "cuda":
                    nbytes = needed(folder, dtype, random, context.world)
                    check_weights(config.model, nbytes, Device.now(device), config.memory)
                experts = asked(config, context, device)
                self._model = PagedModel(folder, config.model, dtype, device, config.fuse, report, group, experts)
            if self._model.spread is not None:
                has = gib(made_bytes(self._model.model))
                context.log.info("rank %d of %d has %s of the weights", context.rank, context.world, has)
                for line in self._model.spread.lines() if context.rank == 0 else ():
                    context.log.info("%s", line)
            for line in self._model.experts.lines() if self._model.experts and context.rank == 0 else ():
                context.log.info("%s", line)
            for line in self._model.fused.lines:
                context.log.info("%s", line)
            self._kernels = self.late_saves = picks_kernels(named(config.attention), device, context.log)
            with shown(context.log) as report:
                if isinstance(config.attention, Part):
                    self._model.library = Library(config.attention, context)
                    undo.callback(self._model.library.close)
                    report(f"trying the attention of {named(config.attention)}, which may compile kernels")
                prove(self._model, config.model, kernels=self._kernels)
            self._place = None if experts is None else experts.place
            self._rebalancing: Rebalancing | None = None
            if self._model.experts is not None and config.balance != "off":
                self._model.experts.record()
            self._together: Together | None = None
            if self._model.experts is not None and together(context):
                self._together = Together(context, context.log)
                undo.callback(self._together.close)
            self._undo = undo.pop_all()
        self.preferred_chunk = chunk_of(config, device)
        self.depth = 2
        self.model = ModelInfo(
            name=config.model,
            fingerprint=random.fingerprint(device) if random else _summed_once(folder, context.state_dir, group),
            kv_dtype=str(self._model.dtype).removeprefix("torch."),
            layout=LAYOUT,
            context=self._model.context,
            vocab=self._model.vocab,
            eos=end_tokens(folder),
        )
        self.groups = self._model.groups
        self._executor: Executor | None = None
        self._shapes: list[PageShape] = []
        self._hosts: list[HostPages] = []

    def open(self, page_size: int, pages: Mapping[str, int], slots: int, wake: Callable[[], None]) -> None:
        for line in self._model.experts.tight(self.preferred_chunk, slots) if self._model.experts else ():
            self._log.warning("%s", line)
        pools = self._pools(page_size, [pages[group.name] for group in self.groups])
        self._shapes = [pool.shape for pool in pools]
        least = self._together.least if self._together else None
        if self._kernels:
            from stepwell_transformers.cuda.assemble import cuda_executor

            with shown(self._log) as report, current(self._model.device):
                parts = self._config, self._cache, wake, report, self._log, self._company, least
                self._executor = cuda_executor(self._model, pools, slots, self.preferred_chunk, *parts)
        else:
            overlap = overlap_of(self._config.overlap, self._model, HostWatch(), self._log, least)
            self._executor = PlainExecutor(self._model, pools, wake, self._log, overlap, self._company())

    def _company(self, stream: torch.cuda.Stream | None = None) -> Company:
        """What other runners have to do with this one's steps, which are computed in a stream, where there are any."""
        config, experts = self._config, self._model.experts
        if experts is None or self._place is None or config.balance == "off" or self._place.world == 1:
            return Company(self._together)
        groups = getattr(self._model.model.config, "n_group", None) or 1
        self._rebalancing = rebalancing_of(
            config.balance,
            config.experts,
            experts,
            self._place,
            groups,
            self._log,
            sums=self._together is not None,
            beside=at_once if stream is None else beside_on_cuda(self._model.device, stream),
        )
        self._undo.callback(self._rebalancing.close)
        return Company(self._together, self._rebalancing.between)

    def _pools(self, page_size: int, counts: Sequence[int]) -> list[PagePool]:
        shapes = self._model.shapes(page_size)
        try:
            return [PagePool(shape, count, self._model.device) for shape, count in zip(shapes, counts, strict=True)]
        except RuntimeError as error:
            nbytes = sum(shape.page_bytes * count for shape, count in zip(shapes, counts, strict=True))
            raise ConfigError(
                f"{' + '.join(map(str, counts))} pages take {nbytes / 2**30:.2f} GiB, which {self._model.device} "
                "does not have: lower cache.device_pages or cache.device_gib"
            ) from error

    def pin(self, arena: ArenaView) -> None:
        places = [arena.slots(group) for group in range(len(self.groups))]
        ends = [*(offset for offset, _, _ in places[1:]), arena.nbytes]
        for group, (shape, (offset, stride, payload), end) in enumerate(zip(self._shapes, places, ends, strict=True)):
            parts, apart = arena.parts(group)
            slots = (end - offset - (parts - 1) * apart - payload) // stride + 1
            self._hosts.append(HostPages(arena.memory, offset, stride, slots, shape, parts, apart))
        if self._model.device.type == "cuda":
            self._register(arena)
        with current(self._model.device):
            self._opened.pin(self._hosts)

    def launch(self, plan: StepPlan) -> Step:
        return self._opened.launch(plan)

    def saved(self) -> Mapping[int, tuple[bool, ...]]:
        return self._opened.saved()

    def budget(self) -> int | None:
        if self._model.device.type != "cuda":
            return None
        if not self._kernels:
            return Share(Device.now(self._model.device), self._config.memory, 0, 0).pages
        graphs = bool(self._config.graphs)
        with current(self._model.device):
            share = share_of(self._model, self._config.memory, self.preferred_chunk, ROWS, graphs=graphs)
        share.check(self.model.name, sum(shape.page_bytes for shape in self._model.shapes(1)))
        self._log.info("%s", share)
        return share.pages

    def values(self) -> Mapping[str, float]:
        return {} if self._rebalancing is None else self._rebalancing.values()

    def close(self) -> None:
        ended = self._executor is None or self._executor.close()
        if ended:  # else something may still be copied there
            for host in self._hosts:
                host.unpin()
        self._executor, self._hosts = None, []
        self._model.drop()
        if self._model.device.type == "cuda":
            gc.collect()  # the modules of a model know each other in circles
            torch.cuda.empty_cache()
        self._undo.close()

    def _register(self, arena: ArenaView) -> None:
        """Pin all of the arena's memory, whose groups share it."""
        with shown(self._log) as report:
            populate(arena, report)
        try:
            self._hosts[0].pin()
        except RuntimeError as error:
            raise refused(arena.nbytes, error) from error

    @property
    def _opened(self) -> Executor:
        assert self._executor is not None
        return self._executor


def _summed_once(folder: Path, cache: Path, group: Group) -> str:
    """The fingerprint of a folder; the first rank reads all of its files, and the others what it has noted of them."""
    if group.rank:
        group.least(0)
    found = fingerprint(folder, cache)
    if not group.rank:
        group.least(0)
    return found


def chunk_of(config: TransformersConfig, device: torch.device) -> int:
    """Tokens of prompts that a step has, unless the engine is told otherwise."""
    return config.chunk or (CPU_CHUNK if device.type == "cpu" else CUDA_CHUNK)


def asked(config: TransformersConfig, context: Context, device: torch.device) -> Asked | None:
    """What a config says about experts; None: each rank has a slice of them."""
    if config.dispatch == "off":
        return None
    decode = None if config.decode_dispatch == "same" else config.decode_dispatch
    place = ExpertPlace.of(context, device)
    most = chunk_of(config, device) + ROWS
    return Asked(config.model, config.dispatch, decode, config.experts, place, most, ROWS, context.log)


def own_device(name: str, context: Context) -> str:
    """The device that a config means: of its kind, the one that this rank or engine, of several, was given."""
    if name not in ("auto", "cuda"):
        if context.world > 1 and name != "cpu":
            raise ConfigError(
                f"runner.device: {name!r} is one device, and {context.world} ranks need one each: use auto or cuda, "
                "and ranks.first_device for the first of them"
            )
        return name
    given = context.device.startswith("cuda:") and (name == "cuda" or torch.cuda.is_available())
    return context.device if given else name


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


def current(device: torch.device) -> AbstractContextManager[object]:
    """A CUDA device as the one that kernels are launched on, whatever the calling thread's own is."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def pick_dtype(name: str, device: torch.device) -> torch.dtype | None:
    """The dtype that a config means; None: the weights' own."""
    if name == "auto":
        return torch.float32 if device.type == "cpu" else None
    return torch.float32 if name == "float32" else torch.bfloat16


def named(attention: str | Part[PagedAttention[Any]]) -> str:
    """What a config calls an attention."""
    return attention if isinstance(attention, str) else attention.offer.name


def picks_kernels(name: str, device: torch.device, log: logging.Logger) -> bool:
    """Whether attention is computed by kernels for CUDA, and the rest of a step on their terms."""
    if name == "torch" or (name == "auto" and device.type != "cuda"):
        return False
    if device.type != "cuda":
        raise ConfigError(f"runner.attention: {name!r} needs a CUDA device, and runner.device is {device}")
    if find_spec("triton") is None:
        if name != "auto":
            raise ConfigError(f"runner.attention: {name!r} needs triton, which is not installed")
        log.warning("triton is not installed: attention is plain torch, which is slow, and decode has no CUDA graphs")
        return False
    return True
