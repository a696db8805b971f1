"""The state of one front end, which every route is given."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from stepwell.abc.codec import Codec
from stepwell_server.collector import EngineCollector
from stepwell_server.errors import unavailable
from stepwell_server.gate import Gate
from stepwell_server.metrics import Meter
from stepwell_server.port import Engine
from stepwell_server.settings import ServerSettings


@dataclass
class Front:
    """Settings, engine and tokenizer as soon as they are there, and what is counted."""

    settings: ServerSettings
    codec: Codec | None = None
    engine: Engine | None = None
    starting: str = "the engine is starting"
    aliases: tuple[str, ...] = ()
    """Further names under which clients may ask for the model."""
    meter: Meter = field(default_factory=Meter)
    executor: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(2, "prepare"))
    born: int = field(default_factory=lambda: int(time.time()))

    def __post_init__(self) -> None:
        self.gate = Gate(self.settings.max_waiting)
        collector = EngineCollector(lambda: self.engine, self.settings.pulse_s, lambda: self.gate.waiting)
        self.meter.registry.register(collector)

    def serving(self) -> tuple[Engine, Codec]:
        """Engine and codec, or the reason why nothing can be asked of them."""
        if self.engine is None or self.codec is None:
            raise unavailable(self.starting, "starting", 2)
        if self.engine.why_down:
            raise unavailable(f"the engine is down: {self.engine.why_down}", "engine_down", 2)
        return self.engine, self.codec

    @property
    def names(self) -> tuple[str, ...]:
        """The model's names towards clients; the first is the one that answers carry."""
        if self.settings.served_model_name is not None:
            return (self.settings.served_model_name,)
        own = (self.engine.hello.model,) if self.engine is not None else ()
        return tuple(dict.fromkeys((*own, *self.aliases)))
