"""A model's weights on a device: all of them, or a rank's part.

A rank reads no more of a checkpoint than its part where the checkpoint names weights as the model does. Where they
change their shape while they are loaded (experts that become one weight, weights of four bits), the whole model comes
to host memory first, one rank after another where that does not hold it for all at once, and is cut there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, Mxfp4Config
from transformers.utils import logging

from stepwell import ConfigError
from stepwell_kernels.collective import Group
from stepwell_transformers.apart import Report
from stepwell_transformers.complete import counted, refuse_incomplete
from stepwell_transformers.memory import weight_bytes
from stepwell_transformers.random_weights import wanted
from stepwell_transformers.refuse import quantisation
from stepwell_transformers.spread import Plan, install
from stepwell_transformers.spread.checkpoint import MAKING, Checkpoint, skeleton

ROOM = 1.2
"""Of a model's size in host memory: what loading it takes beside it."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a model's weights are, and how its modules are made."""

    folder: Path
    config: Any
    name: str
    dtype: torch.dtype | None
    attention: str

    def load(self, device: torch.device) -> Any:
        """The whole model on a device. ConfigError where it cannot be had."""
        if (random := wanted(self.name)) is not None:
            return random.make(self.config, self.dtype, device, self.attention).eval()
        more = {"quantization_config": Mxfp4Config(dequantize=True)} if quantisation(self.config) == "mxfp4" else {}
        with MAKING, _quiet():
            try:
                model, info = AutoModelForCausalLM.from_pretrained(
                    self.folder,
                    dtype=self.dtype or "auto",
                    attn_implementation=self.attention,
                    device_map=device if device.type != "cpu" else None,
                    use_safetensors=True,
                    trust_remote_code=False,
                    output_loading_info=True,
                    ignore_mismatched_sizes=True,  # it would only say that there are some
                    **more,
                )
            except Exception as error:  # that library raises whatever its parts raise
                raise ConfigError(
                    f"runner.model: the weights in {self.folder} cannot be loaded ({line(error)})"
                ) from error
        refuse_incomplete(info, str(self.folder))
        return model.eval()

    def load_part(
        self, device: torch.device, group: Group, planned: Callable[[Any], Plan], report: Report
    ) -> tuple[Any, Plan]:
        """A rank's part of it, and what was cut. `planned` says it of a model, which may be on no device."""
        if wanted(self.name) is not None:
            model = self.load(device)
            plan = planned(model)
            install(model, plan, group)
            return model, plan
        empty = skeleton(self.config, self.dtype, self.attention)
        plan = planned(empty)
        checkpoint = Checkpoint(self.folder)
        lacking = checkpoint.lacking(empty)
        known = (self.dtype or self.config.dtype) is not None
        (fits,) = group.least(int(known and not lacking))
        if fits:
            report(f"reading part {group.rank + 1} of {group.size} of the weights")
            checkpoint.read_part(empty, plan, group, device)
            return empty.eval(), plan
        if lacking:
            report(f"weights that are not in the checkpoint by their own names: {counted(lacking)}")
        return self._cut_on_host(device, group, plan, report), plan

    def _cut_on_host(self, device: torch.device, group: Group, plan: Plan, report: Report) -> Any:
        nbytes = ROOM * weight_bytes(self.folder, self.dtype)
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        (at_once,) = group.least(int(group.size * nbytes <= free))
        found: Any = None
        for turn in range(1 if at_once else group.size):
            if at_once or turn == group.rank:
                report(f"loading all weights, to keep part {group.rank + 1} of {group.size}")
                found = self.load(torch.device("cpu"))
                install(found, plan, group)
                found = found.to(device)
            group.least(0)
        return found


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the bars of the library underneath: a server's log is no place for them."""
    library: Any = logging
    library.disable_progress_bar()
    try:
        yield
    finally:
        library.enable_progress_bar()


def line(error: Exception) -> str:
    """The first line of an error, which may have none; with the next where that says what the first announces."""
    first, *others = [one.strip() for one in str(error).splitlines() if one.strip()] or [type(error).__name__]
    return f"{first} {others[0]}" if first.endswith(":") and others else first
