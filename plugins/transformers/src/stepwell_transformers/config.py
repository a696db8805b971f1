"""The settings of runner and codec."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from stepwell import Balancer, Capability, Dispatcher, PagedAttention, Part
from stepwell_transformers.experts.settings import ExpertsSettings

MOST_THREADS = 4096
"""More than any machine's CPUs; a system that is asked for as many as a slip of the hand may say ends the process."""


@dataclass(frozen=True, slots=True)
class TransformersConfig:
    """The `[runner]` table when `use = "transformers"`."""

    model: str = "smollm2"
    """A folder, a GGUF file, a name on the hub, the alias smollm2, or random/NAME: a public shape, random weights."""
    revision: str | None = None
    """Branch, tag or commit on the hub."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of weights and KV. auto: float32 on CPU, the weights' own on CUDA."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N; auto: cuda where there is one, else cpu."""
    threads: int | None = None
    """Threads of torch on CPU; unset: its own choice."""
    chunk: int | None = None
    """Preferred tokens of prefill a step; unset: 256 on CPU, so that an abort waits little, 8192 on CUDA."""
    memory: float = 0.9
    """Share of a CUDA device's memory that is taken: weights, what steps work with, and pages with the rest."""
    fuse: Literal["auto", "kernels", "compile", "off"] = "auto"
    """What becomes of parts that transformers computes in several passes over memory (norms, rotary, gated MLPs)."""
    graphs: bool | tuple[int, ...] = True
    """Whether decode replays CUDA graphs; a list: for these numbers of rows."""
    attention: Literal["auto", "triton", "torch"] | Part[PagedAttention[Any]] = "auto"
    """auto: Triton's kernels on CUDA; torch: the reference, without graphs; else a plugin's, for the layers it can."""
    copies: Literal["auto", "cuda", "triton", "engine", "torch"] = "auto"
    """How pages go between a CUDA device and host memory; auto: as measured to be best."""
    copy_blocks: int | None = None
    """Thread blocks that a copying kernel may take; unset: as few as fill the link."""
    one_shot: bool = True
    """Whether small sums over ranks go straight into the others' memory, where devices reach it; else through NCCL."""
    dispatch: Literal["off"] | Part[Dispatcher[Any]] = "off"
    """What sends tokens to the ranks that have their experts; off: each rank has a slice of every expert."""
    decode_dispatch: Literal["same"] | Part[Dispatcher[Any]] = "same"
    """What does so in steps of decodes alone, unless these have more tokens than it takes at once."""
    balance: Literal["off"] | Part[Balancer] = "off"
    """What places experts anew as they are asked for, while the model serves; off: they stay. Needs a dispatch."""
    experts: ExpertsSettings = field(default_factory=ExpertsSettings)
    overlap: Literal["off", "auto"] | int = "off"
    """Whether steps run as two halves, one computing while the other's tokens travel: a number: those of so many tokens
    or more; auto: those of sizes where it was measured to be no slower. Needs a dispatch."""

    @property
    def provides(self) -> frozenset[Capability]:
        """Experts are spread over groups, too."""
        return frozenset() if self.dispatch == "off" else frozenset({Capability.TOGETHER})

    def __post_init__(self) -> None:
        self._check_experts()
        if not self.model:
            raise ValueError("model: an empty name is no model")
        if self.threads is not None and not 1 <= self.threads <= MOST_THREADS:
            raise ValueError(f"threads: {self.threads} is not between 1 and {MOST_THREADS}")
        if self.chunk is not None and self.chunk < 1:
            raise ValueError(f"chunk: {self.chunk} is less than 1")
        if not isinstance(self.graphs, bool) and any(rows < 1 for rows in self.graphs):
            raise ValueError("graphs: a number of rows is less than 1")
        if self.copy_blocks is not None and self.copy_blocks < 1:
            raise ValueError(f"copy_blocks: {self.copy_blocks} is less than 1")
        if not 0 < self.memory <= 1:
            raise ValueError(f"memory: {self.memory} is not between 0 and 1")

    def _check_experts(self) -> None:
        if isinstance(self.overlap, int) and self.overlap < 1:
            raise ValueError(f"overlap: {self.overlap} is no number of tokens; use off, auto or 1 and more")
        if isinstance(self.dispatch, Part):
            if self.fuse == "compile":
                raise ValueError("fuse: compile does not go with a dispatch of experts; use auto, kernels or off")
            return
        if isinstance(self.decode_dispatch, Part):
            raise ValueError("decode_dispatch: there is no dispatch beside which it would do decodes; set dispatch")
        if isinstance(self.balance, Part):
            raise ValueError("balance: each rank has a slice of every expert, which is even by itself; set dispatch")
        if self.overlap != "off":
            raise ValueError("overlap: without a dispatch there is nothing to compute beside; set dispatch")
        if self.experts.spare:
            raise ValueError(
                "experts.spare: with dispatch = 'off' each rank has a slice of every expert, and replicas would be "
                "summed several times; set dispatch, or spare = 0"
            )
