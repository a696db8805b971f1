"""From a config to a dispatcher, and what is said where that is not to be had."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepwell import Capability, ConfigError, Traffic
from stepwell_symm import machine, stepwell_checks, stepwell_dispatchers
from stepwell_symm.config import SymmConfig, SymmLowConfig
from stepwell_symm.machine import judged, missing


def test_two_modes_are_two_offers():
    offers = {offer.name: offer for offer in stepwell_dispatchers()}
    assert sorted(offers) == ["symm", "symm-low-latency"]
    assert offers["symm"].provides == frozenset()
    assert offers["symm-low-latency"].provides == {Capability.GRAPH_SAFE}


def test_without_a_driver_or_triton_one_sentence_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "DRIVERS", (tmp_path / "none",))
    monkeypatch.setattr(machine, "find_spec", lambda name: object())
    assert missing() == "it needs NVIDIA GPUs that reach each other's memory, and there is no NVIDIA driver here"
    (check,) = stepwell_checks()
    assert check.run().level == "warn" and "no NVIDIA driver" in check.run().text
    monkeypatch.setattr(machine, "DRIVERS", (Path("/"),))
    assert missing() is None
    monkeypatch.setattr(machine, "find_spec", lambda name: None)
    assert missing() == "it needs Triton: pip install stepwell-symm[cuda]"


@pytest.mark.parametrize(
    ("devices", "reaches", "level", "words"),
    [
        (1, lambda one, other: True, "warn", "one CUDA device"),
        (2, lambda one, other: True, "ok", "all 2 CUDA devices"),
        (3, lambda one, other: {one, other} != {0, 2}, "warn", "no access from device 0 to 2, 2 to 0"),
    ],
)
def test_doctor_says_which_devices_reach_each_other(devices, reaches, level, words):
    found = judged(devices, reaches)
    assert found.level == level and words in found.text


@pytest.mark.parametrize(
    ("config", "given", "words"),
    [
        (SymmConfig, {"in_flight": 3}, "in_flight: 3 is neither 1 nor 2"),
        (SymmConfig, {"programs": 0}, "programs: 0 is not from 1 to 512"),
        (SymmConfig, {"timeout_s": 0.0}, "timeout_s: 0.0 is not above 0"),
        (SymmLowConfig, {"capacity": 2000}, "capacity: 2000 is not from 1 to 1024; symm takes larger batches"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(config, given, words):
    with pytest.raises(ValueError, match=words):
        config(**given)


@pytest.mark.parametrize(
    ("traffic", "dtype", "words"),
    [
        (Traffic(4, 2, 64, "float16", 8), "same", "moves bfloat16 or float32, not float16"),
        (Traffic(4, 2, 36, "bfloat16", 8), "same", "16 bytes at a time; a hidden size of 36 is no multiple"),
        (Traffic(4, 2, 64, "bfloat16", 8), "fp8", "a scale for each 128 numbers; a hidden size of 64"),
        (Traffic(5, 2, 64, "bfloat16", 8), "same", "5 experts cannot be spread evenly over 2 ranks"),
    ],
)
def test_traffic_that_it_cannot_take_is_refused_in_a_sentence(spread, traffic, dtype, words):
    pytest.importorskip("triton")
    from stepwell_symm.normal import Symm

    with pytest.raises(ConfigError, match=words):
        spread(Symm, SymmConfig(dtype), 2)[0].open(traffic)


def test_b113_capacity_is_known_after_open_and_never_above_the_largest_batch(spread):
    pytest.importorskip("triton")
    from stepwell_symm.low import SymmLow

    for capacity, most in ((16, 16), (128, 64)):
        (dispatcher,) = spread(SymmLow, SymmLowConfig(capacity=capacity), 1, Traffic(4, 2, 64, "float32", 64))
        assert dispatcher.capacity == most
        dispatcher.close()
