"""The trace that a config asks for: its texts are read by the tokenizer that `[replay] tokenizer` names."""

# mypy: disable-error-code="type-abstract"

from __future__ import annotations

from pathlib import Path

from stepwell.abc.codec import Codec
from stepwell.config import AUTO, Config
from stepwell.engine.making import Place, make
from stepwell.errors import StepwellError
from stepwell.replay.settings import ReplaySettings
from stepwell.replay.trace import MOONCAKE_BLOCK, Arrival, Progress, load
from stepwell.settings import EngineSettings


def arrivals(
    config: Config,
    path: Path,
    *,
    block: int = MOONCAKE_BLOCK,
    limit: int | None = None,
    speed: float = 1.0,
    progress: Progress | None = None,
) -> list[Arrival]:
    """A trace, read by the tokenizer that the config names."""
    settings = config.bind("replay", ReplaySettings)
    encode = None if settings.tokenizer is None else _codec(config, settings.tokenizer).encode
    return load(path, block=block, limit=limit, speed=speed, encode=encode, progress=progress)


def _codec(config: Config, model: str) -> Codec:
    """The tokenizer of a model: of the runner that the config names, else of the only one beside `sim`."""
    registry = config.load_plugins()
    asked = config.use("runner", AUTO)
    usable = [name for name in registry.offers("codec") if registry.why_not("codec", name) is None and name != "sim"]
    if asked == AUTO and len(usable) != 1:
        have = f"have {', '.join(usable)}; set runner.use" if usable else "no plugin that is installed offers one"
        raise config.error("replay", "tokenizer", f"{model!r} needs a runner that has a tokenizer: {have}")
    table = {"use": usable[0] if asked == AUTO else asked, "model": model}
    folder = config.bind("engine", EngineSettings).state_dir
    try:
        choice = config.beside("runner", table).choose("runner", "codec", registry)
        assert choice is not None
        return make(choice, Codec, Place(choice.offer.name, "cpu", lambda: folder or config.cache_dir))
    except StepwellError as error:
        raise config.error("replay", "tokenizer", str(error)) from error
