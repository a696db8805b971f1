"""Each rank has a device of its own, of the kind that the config says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stepwell import ConfigError
from stepwell_transformers.runner import own_device


@pytest.mark.parametrize(
    ("asked", "given", "world", "want"),
    [
        ("cuda", "cuda:3", 2, "cuda:3"),
        ("cuda", "cuda:3", 1, "cuda:3"),  # the only rank of one of several engines
        ("cuda", "cpu", 1, "cuda"),
        ("cuda:1", "cuda:3", 1, "cuda:1"),
        ("auto", "cuda:1", 2, "cuda:1"),
        ("cpu", "cuda:1", 2, "cpu"),
    ],
)
def test_a_rank_takes_the_device_that_it_was_given(
    asked: str, given: str, world: int, want: str, place: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert own_device(asked, replace(place, device=given, world=world)) == want


def test_without_cuda_auto_is_the_cpu_whatever_number_was_given(place: Any) -> None:
    assert own_device("auto", replace(place, device="cuda:1", rank=1, world=2)) == "auto"


def test_one_device_for_several_ranks_is_refused(place: Any) -> None:
    with pytest.raises(ConfigError, match=r"'cuda:1' is one device, and 2 ranks need one each"):
        own_device("cuda:1", replace(place, world=2))
