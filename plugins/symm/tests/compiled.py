"""Compile what a dispatcher launches, for a Hopper GPU, at a large model's sizes; say what came of it as JSON."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from contextlib import nullcontext
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from stepwell import Traffic
from stepwell_symm.config import SymmConfig, SymmLowConfig
from stepwell_symm.low import SymmLow
from stepwell_symm.normal import Symm
from stepwell_symm.shared import Shared

KINDS = {
    torch.int64: "*i64",
    torch.int32: "*i32",
    torch.float32: "*fp32",
    torch.bfloat16: "*bf16",
    torch.float8_e4m3fn: "*fp8e4nv",
}
PTXAS = Path(triton.__file__).parent / "backends/nvidia/bin/ptxas"


class Compiling:
    """Compiles each kernel in the place of running it."""

    device, timed = torch.device("cpu"), True

    def __init__(self, what: str) -> None:
        self.what = what

    def run(self, kernel, programs, *args, warps, maxnreg=None, **meta):
        names = kernel.arg_names
        given = dict(zip(names, args, strict=False))
        signature = {
            name: "constexpr"
            if name in meta
            else KINDS[given[name].dtype]
            if name in given and hasattr(given[name], "dtype")
            else "i32"
            for name in names
        }
        aligned = {(at,): [["tt.divisibility", 16]] for at, name in enumerate(names) if signature[name].startswith("*")}
        source = ASTSource(kernel, signature, {(names.index(name),): value for name, value in meta.items()}, aligned)
        made = triton.compile(
            source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps, "maxnreg": maxnreg}
        )
        print(json.dumps({"of": self.what, "kernel": kernel.__name__, **judged(made.asm["ptx"])}), flush=True)

    def aside(self):
        return nullcontext()

    def mark(self):
        return Done()

    def pinned(self, shape, dtype):
        return torch.zeros(shape, dtype=dtype)


class Done:
    def record(self):
        pass

    wait = synchronize = record


def judged(ptx):
    """Registers and bytes spilt as the assembler says; stores and loads of 16 bytes; flags that are released."""
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        said = subprocess.run(
            [PTXAS, "-v", "--gpu-name", "sm_90a", file.name, "-o", "/dev/null"],
            capture_output=True,
            text=True,
            check=True,
        ).stderr
    return {
        "registers": int(re.search(r"Used (\d+) registers", said)[1]),
        "spilt": sum(map(int, re.findall(r"(\d+) bytes spill stores", said))),
        "wide_stores": len(re.findall(r"st\.global\S*\.v4\.b32|st\.global\S*\.v2\.b64", ptx)),
        "wide_loads": len(re.findall(r"ld\.global\S*\.v4\.b32|ld\.global\S*\.v2\.b64", ptx)),
        "released": len(re.findall(r"atom\.global\.sys\.release", ptx)),
        "acquired": len(re.findall(r"(?:ld|atom)\.global\.sys\.acquire", ptx)),
    }


def compile_all(offer, config, ranks, tokens, top, experts, dtype):
    traffic = Traffic(experts, top, 7168, dtype, tokens)

    def share(size):
        own = torch.empty(size, dtype=torch.uint8)
        return Shared(own, (own.data_ptr(),) * ranks)

    dispatcher = offer(config, 0, ranks, Compiling(f"{offer.__name__} {config.dtype} {ranks}"), share)
    dispatcher.open(traffic)
    numbers = torch.empty(tokens, 7168, dtype=getattr(torch, dtype))
    chosen, weights = torch.empty(tokens, top, dtype=torch.int64), torch.empty(tokens, top)
    got = dispatcher.dispatch_finish(dispatcher.dispatch_start(numbers, chosen, weights))
    outputs = torch.empty(got.tokens.shape, dtype=numbers.dtype)
    dispatcher.combine_finish(dispatcher.combine_start(outputs, got))


if __name__ == "__main__":
    for dtype in ("same", "fp8"):
        compile_all(Symm, SymmConfig(dtype, in_flight=1), 2, 4096, 8, 256, "bfloat16")
        compile_all(SymmLow, SymmLowConfig(dtype, in_flight=1), 2, 128, 8, 288, "bfloat16")
