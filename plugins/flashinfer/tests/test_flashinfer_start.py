"""From a config to the library, and what is said where that is not to be had."""

import importlib.util

import pytest

from stepwell import Capability, ConfigError, PagedAttention, Part
from stepwell.config import Config
from stepwell.plugins import load
from stepwell_flashinfer.config import FlashInferConfig
from stepwell_testkit import KitContext


def chosen(*sets):
    config = Config.load(None, {}, ("runner.use=transformers", *sets))
    return config.choose_runner(load()).settings.attention


def test_without_the_library_one_sentence_says_what_to_install(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr("stepwell_flashinfer.find_spec", lambda name: None if name == "flashinfer" else find(name))
    with pytest.raises(ConfigError) as told:
        chosen("runner.attention=flashinfer")
    assert str(told.value) == (
        "runner.attention = 'flashinfer' (--set runner.attention): it needs FlashInfer: "
        "pip install stepwell-flashinfer[library]; it may also be auto or triton or torch"
    )


def test_a_config_names_it_and_gets_it_with_its_settings(double, tmp_path):
    part = chosen("runner.attention.use=flashinfer", "runner.attention.backend=fa2", "runner.attention.workspace_mib=1")
    assert isinstance(part, Part) and part.provides == {Capability.GRAPH_SAFE}
    assert part.settings == FlashInferConfig(backend="fa2", workspace_mib=1)
    attention = part.make(KitContext(tmp_path))
    assert isinstance(attention, PagedAttention)
    attention.close()


def test_a_workspace_of_nothing_is_refused(double):
    with pytest.raises(ConfigError, match=r"runner.attention.workspace_mib .*: 0 is less than 1"):
        chosen("runner.attention.use=flashinfer", "runner.attention.workspace_mib=0")


def test_looking_for_the_library_does_not_import_it(double, monkeypatch):
    import sys

    monkeypatch.delitem(sys.modules, "flashinfer")
    chosen("runner.attention=flashinfer")
    assert "flashinfer" not in sys.modules
