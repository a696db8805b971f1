"""What pytest loads by itself: the refusals at collection, and fixtures for hosts and plugins.

It is apart from the kits, and imports nothing of Stepwell at the top, so that having the kits installed costs a run
of pytest that does not use them next to nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib import invalidate_caches
from pathlib import Path
from threading import Thread, current_thread
from types import ModuleType
from typing import TYPE_CHECKING, Protocol

import pytest

if TYPE_CHECKING:
    import pluggy

    from stepwell_testkit.context import KitContext

pytest.register_assert_rewrite("stepwell_testkit")

Collected = pytest.Item | pytest.Collector | list[pytest.Item | pytest.Collector] | None


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem(
    collector: pytest.Module | pytest.Class, name: str, obj: object
) -> Generator[None, Collected, Collected]:
    """Refuse a kit's subclass that could pass without having been tested."""
    made = yield
    if isinstance(made, pytest.Class) and isinstance(obj, type):
        refusals: list[str] = getattr(obj, "kit_refusals", list)()
        if refusals:
            raise collector.CollectError("\n".join(refusals))
    return made


@pytest.fixture
def context(tmp_path: Path) -> KitContext:
    """What core hands to a factory; its `state_dir` is a folder of this test's own."""
    from stepwell_testkit.context import KitContext

    state = tmp_path / "state"
    state.mkdir()
    return KitContext(state)


class FakeDist(Protocol):
    """Makes an installed distribution out of strings; answers the folder it stands in."""

    def __call__(
        self,
        name: str,
        modules: Mapping[str, str],
        entry_points: Mapping[str, Mapping[str, str]] | None = None,
        *,
        version: str = "1.0",
        requires: Sequence[str] = (),
    ) -> Path: ...


@pytest.fixture
def fake_dist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDist]:
    """Make installed distributions out of strings, in milliseconds.

    `fake_dist("stepwell-x", {"stepwell_x": SOURCE}, {"stepwell.v1": {"x": "stepwell_x"}})`: each stands in a folder of
    its own at the front of `sys.path`, with metadata that `importlib.metadata` finds; at the end its modules are
    forgotten, and those whose names they took are back. A later one comes before an earlier one, as on a real path.
    """
    made: set[str] = set()
    aside: dict[str, ModuleType] = {}

    def make(
        name: str,
        modules: Mapping[str, str],
        entry_points: Mapping[str, Mapping[str, str]] | None = None,
        *,
        version: str = "1.0",
        requires: Sequence[str] = (),
    ) -> Path:
        site = tmp_path / "dists" / f"{name}-{version}"
        files = {f"{module.replace('.', '/')}.py": source for module, source in modules.items()}
        for module in modules:
            for parent in Path(*module.split(".")).parents[:-1]:
                files.setdefault(f"{parent}/__init__.py", "")
        info = f"{name.replace('-', '_')}-{version}.dist-info"
        head = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
        files[f"{info}/METADATA"] = "\n".join([*head, *(f"Requires-Dist: {need}" for need in requires), ""])
        files[f"{info}/entry_points.txt"] = "".join(
            f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in points.items())
            for group, points in (entry_points or {}).items()
        )
        files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in files)
        for path, text in files.items():
            file = site / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        new = {module.split(".")[0] for module in modules} - made
        aside.update(_taken_out(new))
        made.update(new)
        monkeypatch.syspath_prepend(str(site))
        invalidate_caches()
        return site

    yield make
    _taken_out(made)
    sys.modules.update(aside)


def _taken_out(packages: Collection[str]) -> dict[str, ModuleType]:
    """Modules of these packages, which are imported anew from now on."""
    return {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] in packages}


NoHooks = Callable[..., AbstractContextManager[None]]


@pytest.fixture
def no_hooks() -> NoHooks:
    """A context manager of a plugin manager in which no hook may be called, or (`on=thread`) none by one thread."""
    return _no_hooks


@contextmanager
def _no_hooks(manager: pluggy.PluginManager, *, on: Thread | None = None) -> Iterator[None]:
    called: list[str] = []

    def before(hook_name: str, hook_impls: Sequence[object], kwargs: Mapping[str, object]) -> None:
        if on in (None, current_thread()):
            called.append(f"{hook_name} on thread {current_thread().name}")

    def after(*_: object) -> None:
        pass

    undo = manager.add_hookcall_monitoring(before, after)
    try:
        yield
    finally:
        undo()
    if called:
        pytest.fail(f"{len(called)} hook calls where none may be: {', '.join(sorted(set(called)))}")
