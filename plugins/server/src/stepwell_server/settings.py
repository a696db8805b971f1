"""What `[server]` in a config sets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from stepwell.coerce import Secret
from stepwell.settings import above_zero, at_least

TenantFrom = Literal["user", "key", "header", "nothing"]


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The `[server]` table."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = 8000
    """Port to listen on; 0 takes a free one and prints it."""
    api_key: Secret | None = None
    """Bearer token that every route under /v1 asks for; with no key set, anybody may ask."""
    api_keys: Mapping[str, Secret] = field(default_factory=dict)
    """Further such tokens, each under the name of whoever has it: `api_keys.ann = { env = "ANNS_KEY" }`."""
    tenant: TenantFrom = "user"
    """Whose a request is, for fair shares and counts: what the client itself says in `user`, the name of its key in
    `api_keys`, or what the header `x-stepwell-tenant` says, which a proxy in front then has to set."""
    admin_key: Secret | None = None
    """Bearer token of the routes under /admin; unset: there are no such routes."""
    served_model_name: str | None = None
    """The model's name towards clients; unset: the name it was started with."""
    max_body_mib: float = 16.0
    """Largest request body."""
    max_waiting: int = 1024
    """Answers that may wait for their first token; further ones are refused with 503."""
    max_choices: int = 128
    """Most answers (prompts times n) that one request may ask for."""
    default_max_tokens: int | None = None
    """Answer length where a chat request names none; unset: whatever the model's context leaves."""
    on_engine_death: Literal["restart", "exit"] = "restart"
    """What happens when the engine's process dies; its requests get an error either way."""
    keep_alive_s: float = 65.0
    """Seconds for which an idle connection is kept open."""
    ping_s: float = 15.0
    """A stream that has nothing to say for so long gets a comment line, which keeps proxies from closing it."""
    client_timeout_s: float = 60.0
    """A client that neither sends its request nor takes its answer for so long counts as gone."""
    pulse_s: float = 1.5
    """An engine whose serving loop was not heard for so long is not healthy."""

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ValueError(f"port: {self.port} is not between 0 and 65535")
        for name in ("api_key", "admin_key", "served_model_name"):
            if getattr(self, name) == "":
                raise ValueError(f"{name}: is empty; leave it out instead")
        for name, key in self.api_keys.items():
            if not (name and key):
                raise ValueError(f"api_keys: {name!r} has no name or an empty key; leave it out instead")
        keys = [self.api_key, *self.api_keys.values()]
        if len(set(keys)) < len(keys):
            raise ValueError("api_keys: two of them, or one and api_key, are the same")
        if self.tenant == "key" and not self.api_keys:
            raise ValueError("tenant: is key, and there are no server.api_keys to have names")
        if self.admin_key is not None and self.admin_key in keys:
            raise ValueError("admin_key: is the same as a client's key, so every client could administrate")
        above_zero("max_body_mib", self.max_body_mib)
        at_least("max_waiting", self.max_waiting, 1)
        at_least("max_choices", self.max_choices, 1)
        at_least("default_max_tokens", self.default_max_tokens, 1)
        for name in ("keep_alive_s", "ping_s", "client_timeout_s", "pulse_s"):
            above_zero(name, getattr(self, name))

    @property
    def client_keys(self) -> dict[str | None, str]:
        """Keys that open /v1, by name; None: the one without a name."""
        unnamed: dict[str | None, str] = {} if self.api_key is None else {None: self.api_key}
        return unnamed | dict(self.api_keys)

    @property
    def admin_keys(self) -> dict[str | None, str]:
        """Keys that open /admin."""
        return {} if self.admin_key is None else {None: self.admin_key}
