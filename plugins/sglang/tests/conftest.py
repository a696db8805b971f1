"""SGLang's own classes on a CPU; nothing of SGLang is replaced.

Its controllers import, far away from storage, an image processor that wants torchvision, which has to fit torch to the
build and draws in a GPU stack where it does not. Where it is not installed, an empty module stands in for it while they
are imported; nothing here touches an image.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import importlib.util
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import ModuleType
from typing import Any

import pytest

from stepwell import DONE, MISSING, Failed, PageKey, PageResult, PageViews, Storage
from stepwell_sglang import trial
from stepwell_sglang.settings import Settings

warnings.filterwarnings("ignore", module="sglang")
collect_ignore_glob = [] if importlib.util.find_spec("sglang") else ["test_*.py"]


class NoImages(ModuleType):
    """A module that has any name, and nothing behind it."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


@pytest.fixture(scope="session", autouse=True)
def sglang_imported() -> None:
    if importlib.util.find_spec("torchvision") is None:
        from transformers.utils import is_torchvision_available

        assert not is_torchvision_available()  # asked now, since the answer is kept
        names = ("torchvision", "torchvision.transforms", "torchvision.transforms.functional")
        sys.modules.update({name: NoImages(name) for name in names})
        try:
            importlib.import_module(FAR_REACHING)
        finally:
            for name in names:
                del sys.modules[name]
    else:
        importlib.import_module(FAR_REACHING)


FAR_REACHING = "sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller"
"""Imports all of SGLang that the tests need."""


def hashes(count: int, salt: str = "") -> list[str]:
    """Page hashes as SGLang makes them: hex text."""
    return [hashlib.sha256(f"{salt}{at}".encode()).hexdigest() for at in range(count)]


def fill(pool: Any, seed: int = 0) -> None:
    """Every byte of a pool at random."""
    import torch

    made = torch.Generator().manual_seed(seed)
    buffers = pool.kv_buffer if isinstance(pool.kv_buffer, tuple | list) else [pool.kv_buffer]
    for buffer in buffers:
        buffer.view(torch.uint8).random_(0, 256, generator=made)


def content(pool: Any, slots: Any) -> list[bytes]:
    """The bytes of each part of each page, by the pool's own account."""
    pointers, sizes = pool.get_page_buffer_meta(slots)
    return [ctypes.string_at(at, size) for at, size in zip(pointers, sizes, strict=True)]


class Shaky(Storage):
    """A dict of pages, with whatever a test does to it. It checks nothing, so that the seals have to."""

    def __init__(self) -> None:
        self.pages: dict[PageKey, bytes] = {}
        self.fail: Callable[[str, PageKey], PageResult | None] = lambda what, key: None
        self.before: Callable[[str], object] = lambda what: None
        self.closed = 0
        self.attached = 0

    def attach(self, arena: Any) -> None:
        self.attached += 1

    def contains(self, keys: Any) -> list[bool]:
        self.before("contains")
        return [key in self.pages for key in keys]

    def read(self, keys: Any, into: PageViews) -> list[PageResult]:
        self.before("read")
        return [self.fail("read", key) or self._read(key, view) for key, view in zip(keys, into.buffers(), strict=True)]

    def _read(self, key: PageKey, view: memoryview) -> PageResult:
        page = self.pages.get(key)
        if page is None:
            return MISSING
        if len(page) != len(view):
            return Failed("another size")
        view[:] = page
        return DONE

    def write(self, keys: Any, pages: PageViews) -> list[PageResult]:
        self.before("write")
        results: list[PageResult] = []
        for key, view in zip(keys, pages.buffers(), strict=True):
            failed = self.fail("write", key)
            if failed is None:
                self.pages.setdefault(key, bytes(view))
            results.append(failed or DONE)
        return results

    def delete(self, keys: Any) -> None:
        for key in keys:
            self.pages.pop(key, None)

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def shaky(monkeypatch: pytest.MonkeyPatch) -> Shaky:
    """A storage in the place of whichever the extra config names."""
    storage = Shaky()
    monkeypatch.setattr(Settings, "storage", lambda self, nth, rank, world: storage)
    return storage


@pytest.fixture
def attach() -> Iterator[Callable[..., Any]]:
    """Make stores the way SGLang does; they are closed in the end."""
    made: list[Any] = []

    def make(pool: Any, storage: dict[str, object] | None = None, *, name: str = "dynamic", **settings: Any) -> Any:
        more = settings.pop("more", {})
        extra = trial.dynamic(storage or {"use": "memory"}, **more)
        settings.setdefault("mla", not hasattr(pool, "head_num"))
        store = trial.attach(name, pool, trial.config(extra, **settings))
        made.append(store)
        return store

    yield make
    for store in made:
        with suppress(Exception):
            store.close()
