"""For every test of the workspace: which run together, and which are skipped for want of a CUDA device."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent
SERVERS = ("mooncake", "nixl", "redis", "sglang", "aibrix", "ray")
"""Plugins whose tests run other people's servers and clients, which have a timing of their own."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Name each test's group, where several processes share the work, and skip what cannot run here.

    Tests of one folder run in one process, in order: they share servers and downloads. A test with a real server that
    fails gets a second try, which the summary lists.
    """
    if config.pluginmanager.hasplugin("xdist"):
        for item in items:
            item.add_marker(pytest.mark.xdist_group("-".join(item.path.relative_to(ROOT).parts[:-1])))
    if config.pluginmanager.hasplugin("rerunfailures"):
        for item in items:
            if item.path.relative_to(ROOT).parts[:2] in [("plugins", name) for name in SERVERS]:
                item.add_marker(pytest.mark.flaky(reruns=1))
    skip_gpu(items)


def skip_gpu(items: list[pytest.Item]) -> None:
    """Skip `gpu` tests, and do not import torch unless there are some."""
    wanting = [item for item in items if item.get_closest_marker("gpu")]
    if not wanting:
        return
    import torch

    if not torch.cuda.is_available():
        for item in wanting:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))
