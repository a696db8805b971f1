"""NIXL itself: which wheel is installed, an agent of it, and what it raises.

The wheels for CUDA 12 and 13 have modules of different names and the same interface; both import without CUDA.
"""

from __future__ import annotations

import importlib
import logging
import os
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Protocol

import numpy as np
import numpy.typing as npt

from stepwell import PluginError

WHEELS = ("nixl_cu12", "nixl_cu13")
_environment = threading.Lock()

Rows = npt.NDArray[np.uint64]
"""One descriptor a row: address (of memory), offset (in a file) or 0 (of an object); length; device, file or object."""


class Handle(Protocol):
    """A transfer."""


class Registered(Protocol):
    """What was registered, for taking it back."""


class Descs(Protocol):
    """Descriptors of one side of a transfer."""


class Agent(Protocol):
    """The part of `nixl_agent` that is used here. All of it raises `errors()`."""

    name: str

    def create_backend(self, backend: str, initParams: Mapping[str, str]) -> None: ...  # noqa: N803
    def register_memory(self, reg_list: Sequence[tuple[int, int, int, str]], mem_type: str) -> Registered: ...
    def deregister_memory(self, dereg_list: Registered) -> None: ...
    def query_memory(
        self, reg_list: Sequence[tuple[int, int, int, str]], backend: str, mem_type: str
    ) -> list[dict[str, str] | None]: ...
    def get_xfer_descs(self, descs: Rows | list[tuple[int, int, int]], mem_type: str) -> Descs: ...
    def initialize_xfer(self, operation: str, local_descs: Descs, remote_descs: Descs, remote_agent: str) -> Handle: ...
    def transfer(self, handle: Handle) -> str: ...
    def check_xfer_state(self, handle: Handle) -> str: ...
    def release_xfer_handle(self, handle: Handle) -> None: ...
    def get_agent_metadata(self) -> bytes: ...
    def add_remote_agent(self, metadata: bytes) -> str | bytes: ...
    def remove_remote_agent(self, agent: str) -> None: ...


def missing() -> str | None:
    """Why NIXL cannot be used here."""
    if any(find_spec(wheel) for wheel in WHEELS):
        return None
    return "NIXL is not installed: pip install 'stepwell-nixl[cu12]' (or [cu13]; either runs without a GPU)"


def make_agent(backend: str, params: Mapping[str, str], setting: str, *, moves_for_others: bool = False) -> Agent:
    """An agent with one backend. For one thread at a time: it locks nothing itself.

    UCX then moves its own transfers while somebody looks at them. One whose memory others write to needs a thread that
    always looks, which takes up to a fifth of a core, idle or not.
    """
    wheel = _wheel()
    api = importlib.import_module(f"{wheel}._api")
    logging.getLogger(api.logger.name).setLevel(logging.WARNING)
    config = api.nixl_agent_config(enable_prog_thread=moves_for_others, backends=[])
    agent: Agent = api.nixl_agent(f"stepwell-{uuid.uuid4().hex}", config)
    try:
        agent.create_backend(backend, dict(params))
    except errors() as error:
        raise PluginError(
            f"storage.{setting}: {wheel}'s {backend} backend does not start ({error}); "
            f"what it lacks is on standard error"
        ) from None
    return agent


def make_ucx_agent(devices: str, *, moves_for_others: bool = False) -> Agent:
    """An agent of UCX on these network devices; empty: all.

    Without its modules for InfiniBand where the loopback's is the only one: they load the system's libnl beside the
    wheel's, and the process then ends with a segmentation fault.
    """
    params = {"ucx_devices": devices} if devices else {}
    with told({"UCX_MODULES": "^ib"} if devices == "lo" else {}):
        return make_agent("UCX", params, "devices", moves_for_others=moves_for_others)


@contextmanager
def told(settings: Mapping[str, str]) -> Iterator[None]:
    """Settings that a library reads from the environment alone, unless whoever started the process has others."""
    with _environment:
        ours = {name: value for name, value in settings.items() if name not in os.environ}
        os.environ.update(ours)
        try:
            yield
        finally:
            for name in ours:
                del os.environ[name]


def errors() -> tuple[type[Exception], ...]:
    """Everything that NIXL raises."""
    bindings = importlib.import_module(f"{_wheel()}._bindings")
    kinds = [kind for kind in vars(bindings).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    return tuple(kinds)


def _wheel() -> str:
    wheel = next((wheel for wheel in WHEELS if find_spec(wheel)), None)
    if wheel is None:
        raise PluginError(missing() or "")
    return wheel
