"""A hub that does not answer is one sentence, whatever library it is asked with."""

from __future__ import annotations

import pytest

from stepwell import ConfigError
from stepwell_transformers.locate import locate


class Refused(Exception):
    """Of no family that anybody knows."""


@pytest.mark.parametrize(("model", "hint"), [("smollm", "; did you mean smollm2?"), ("quite-another", "")])
def test_a_hub_out_of_reach_is_one_sentence(monkeypatch, tmp_path, model, hint):
    import huggingface_hub

    def info(*given, **more):
        raise Refused("Name or service not known\nand more")

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", info)
    with pytest.raises(ConfigError) as failure:
        locate(model, None, tmp_path)
    assert str(failure.value) == (
        f"runner.model: {model!r} is no folder, no GGUF file, no alias (smollm2), "
        f"and the hub does not give it: Name or service not known{hint}"
    )
