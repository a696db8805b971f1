"""Latent attention whose config and weights are of different models is refused, where that library draws weights."""

import json
import shutil

import pytest

import stepwell


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_rank_of_queries_that_the_weights_have_not_is_refused(ranks, latent, tmp_path):
    folder = tmp_path / "small"
    shutil.copytree(latent("deepseek-v3-halves"), folder)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"q_lora_rank": 20}))
    with pytest.raises(stepwell.ConfigError, match=r"missing: 6, model\.layers\.0\.self_attn\.q_a_layernorm\.weight"):
        stepwell.Engine(
            runner={"use": "transformers", "model": str(folder), "device": "cpu", "dtype": "float32"},
            cache={"page_size": 4, "device_pages": 16, "host_pages": 16},
            ranks={"tp": ranks},
        )
