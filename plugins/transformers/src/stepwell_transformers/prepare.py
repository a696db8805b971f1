"""A model's tokenizer as the transformers library reads it, written down once, so that a front end needs no torch.

What that library makes of a model's files depends on the model's class and on its release; the written-down one is a
plain tokenizer.json, and loads in a fraction of a second. Run as a module, in a process of its own:
`python -m stepwell_transformers.prepare FOLDER TARGET`.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path

from stepwell import ConfigError
from stepwell_transformers.apart import Report, once, run_apart

FORMAT = "1"
"""Of what is written; another number writes anew."""
FILES = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab*",
    "merges.txt",
    "spiece.model",
    "chat_template*",
    "config.json",
)
"""What decides how a tokenizer works."""


def prepared(folder: Path, cache: Path, report: Report) -> Path:
    """A folder with `tokenizer.json` and `about.json`; made where it is missing. Raises ConfigError."""
    target = cache / "tokenizers" / _digest(folder)

    def make(temporary: Path) -> None:
        report("reading the tokenizer")
        run_apart("prepare", [folder, temporary], f"runner.model: the tokenizer in {folder} cannot be read", report)

    return once(target, make, report)


def _digest(folder: Path) -> str:
    import xxhash

    digest = xxhash.xxh3_128(f"{FORMAT}|{version('transformers')}|{version('tokenizers')}".encode())
    paths = sorted({path for pattern in FILES for path in folder.glob(pattern) if path.is_file()})
    if not any(path.name != "config.json" for path in paths):
        raise ConfigError(f"runner.model: {folder} holds no tokenizer")
    for path in paths:
        content = path.read_bytes()
        digest.update(f"|{path.name}|{len(content)}|".encode())
        digest.update(content)
    return digest.hexdigest()


def _write(folder: Path, target: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ValueError(f"{type(tokenizer).__name__} is none of the tokenizers library")
    backend.no_padding()
    backend.no_truncation()
    target.mkdir(parents=True, exist_ok=True)
    (target / "tokenizer.json").write_text(backend.to_str(), encoding="utf-8")
    template = tokenizer.chat_template
    about = {
        "chat_template": template.get("default") if isinstance(template, dict) else template,
        "special_tokens": {name: str(token) for name, token in tokenizer.special_tokens_map.items()},
        "special_ids": sorted(tokenizer.all_special_ids),
        "eos": tokenizer.eos_token_id,
    }
    (target / "about.json").write_text(json.dumps(about, ensure_ascii=False), encoding="utf-8")


if __name__ == "__main__":
    _write(Path(sys.argv[1]), Path(sys.argv[2]))
