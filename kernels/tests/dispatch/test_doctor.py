"""What doctor says of exchanges between ranks, on machines with and without what they need."""

from __future__ import annotations

import re

import pytest

from stepwell_kernels.dispatch import doctor


@pytest.mark.parametrize(
    ("gpu", "cuda", "triton", "level", "said"),
    [
        ("none", None, None, "ok", "gloo"),
        (None, None, object(), "warn", "torch here is built without CUDA"),
        (None, "13.0", None, "warn", r"pip install stepwell-kernels\[cuda\]"),
        (None, "13.0", object(), "ok", "NCCL"),
    ],
)
def test_each_machine_has_its_sentence(
    monkeypatch: pytest.MonkeyPatch, gpu: str | None, cuda: str | None, triton: object, level: str, said: str
) -> None:
    monkeypatch.setattr(doctor, "gpu_missing", lambda: gpu)
    monkeypatch.setattr(doctor, "torch_cuda", lambda: cuda)
    monkeypatch.setattr(doctor, "find_spec", lambda name: triton)
    found = doctor.collectives()
    assert found.level == level
    assert re.search(said, found.text)
