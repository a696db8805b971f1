"""Models of public shapes with random weights."""

import pytest
import torch
from click.testing import CliRunner

import stepwell
from stepwell import ConfigError
from stepwell.cli import root
from stepwell.models import read_shape
from stepwell_transformers.config import TransformersConfig
from stepwell_transformers.model import PagedModel
from stepwell_transformers.random_weights import RandomCodec, names, wanted

CPU = torch.device("cpu")


def made(name, dtype=None):
    return PagedModel(wanted(name).folder, name, dtype, CPU)


def test_the_same_seed_draws_the_same_weights_and_another_seed_others():
    torch.manual_seed(1)
    first, expected = made("random/tiny"), torch.rand(1)
    torch.manual_seed(1)
    assert torch.equal(torch.rand(1), expected)  # drawing them leaves everybody else's numbers alone
    again, other = made("random/tiny@0"), made("random/tiny@5")
    same, differ = [], []
    for (name, one), two, three in zip(
        first.model.named_parameters(), again.model.parameters(), other.model.parameters(), strict=True
    ):
        same.append(torch.equal(one, two))
        differ.append(not torch.equal(one, three) or "norm" in name)
    assert all(same)
    assert all(differ)
    fingerprints = [wanted(name).fingerprint(CPU) for name in ("random/tiny", "random/tiny@0", "random/tiny@5")]
    assert fingerprints[0] == fingerprints[1] != fingerprints[2]
    assert wanted("random/tiny").fingerprint(torch.device("cuda")) != fingerprints[0]


def test_weights_are_sane():
    model = made("random/tiny")
    assert model.dtype == torch.bfloat16
    assert made("random/tiny", torch.float32).dtype == torch.float32
    for name, weight in model.model.named_parameters():
        if "norm" in name:
            assert torch.equal(weight, torch.ones_like(weight))
        else:
            assert 0.018 < float(weight.float().std()) < 0.022
            assert abs(float(weight.float().mean())) < 0.002


@pytest.mark.parametrize(
    ("name", "token_bytes"),
    [
        ("llama-3.1-8b", [131072]),
        ("qwen3-8b", [147456]),
        ("gpt-oss-20b", [24576, 24576]),
        ("gemma-3-12b", [65536, 327680]),
        ("tiny", [1024]),
        ("tiny-windows", [512, 512]),
    ],
)
def test_shapes_keep_what_the_public_ones_keep(name, token_bytes):
    import json

    config = json.loads((wanted(f"random/{name}").folder / "config.json").read_text())
    assert [group.token_bytes for group in read_shape(config).groups()] == token_bytes


@pytest.mark.parametrize(
    ("name", "billions"), [("llama-3.1-8b", 8.03), ("qwen3-8b", 8.19), ("gpt-oss-20b", 20.91), ("gemma-3-12b", 11.77)]
)
def test_shapes_have_as_many_weights_as_the_public_ones(name, billions):
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(wanted(f"random/{name}").folder))
    assert sum(weight.numel() for weight in model.parameters()) / 1e9 == pytest.approx(billions, abs=0.01)


def test_what_names_no_shape_says_which_there_are():
    assert wanted("org/random/tiny") is None
    with pytest.raises(ConfigError, match=r"have .*random/llama-3.1-8b.*did you mean random/llama-3.1-8b\?"):
        wanted("random/llama-3-8b")
    for seed in ("", "x", "-1", "9" * 20, "9" * 5000):
        with pytest.raises(ConfigError, match="seed"):
            wanted(f"random/tiny@{seed}")
    assert wanted("random/tiny@" + "9" * 18).seed == 10**18 - 1


def test_threads_beyond_any_machine_are_a_mistake():
    for threads in (0, 10**6, 10**11):
        with pytest.raises(ValueError, match="between 1 and"):
            TransformersConfig(threads=threads)


@pytest.mark.parametrize("digits", [13, 5000])
def test_numbers_beyond_reason_are_a_mistake_in_one_sentence(digits):
    many = "9" * (digits + 1)
    for option in (("--tokens", many), ("--tokens", many + "k")):
        wrong = CliRunner().invoke(root, ["bench", "prefill", "--device", "cpu", *option])
        assert (wrong.exit_code, "is no number of tokens" in wrong.output) == (2, True)
    for point, why in ((f"{many}x1", "is no point"), (f"1x{many}", "is no number of tokens")):
        wrong = CliRunner().invoke(root, ["bench", "decode", "--device", "cpu", "--point", point])
        assert (wrong.exit_code, why in wrong.output) == (2, True)


def test_the_engine_answers_token_ids():
    settings = {"runner": {"use": "transformers", "model": "random/tiny", "device": "cpu"}}
    with stepwell.Engine(settings) as engine:
        prompt = list(range(300, 350))
        first = engine.generate(prompt, max_tokens=8)
        again = engine.generate(prompt, max_tokens=8)
        assert first.finish_reason == "length"
        assert len(first.tokens) == 8
        assert again.tokens == first.tokens
        assert again.cached.device == 48
        assert engine.generate("text", max_tokens=2).text


def test_run_and_an_unknown_name_on_the_command_line():
    run = ["run", "--set", "runner.use=transformers", "--set", "runner.device=cpu"]
    done = CliRunner().invoke(root, [*run, "--set", "runner.model=random/tiny", "hello"])
    assert done.exit_code == 0, done.output
    wrong = CliRunner().invoke(root, [*run, "--set", "runner.model=random/tinny", "hello"])
    assert wrong.exit_code == 2
    assert "did you mean random/tiny?" in wrong.output


def test_text_is_bytes_and_other_tokens_are_their_numbers():
    codec = RandomCodec(512)
    tokens = [int.from_bytes(codec.encode("aé")[at : at + 4], "little") for at in range(0, 12, 4)]
    assert tokens == [0x61, 0xC3, 0xA9]
    text = codec.stream()
    assert [text.add([one]) for one in (*tokens, 300, 0xC3)] == ["a", "", "é", " 300", ""]
    assert text.end() == "\N{REPLACEMENT CHARACTER}"
    assert codec.piece(300) == b" 300"
    with pytest.raises(ValueError, match="Unicode"):
        codec.encode("\ud800")
    assert codec.chat([{"role": "user", "content": "hi"}]) == codec.encode("<user>hi\n<assistant>")
    with pytest.raises(ValueError, match="at least one"):
        codec.chat([])


def test_there_are_presets():
    assert {"llama-3.1-8b", "qwen3-8b", "gpt-oss-20b", "gemma-3-12b", "tiny", "tiny-windows"} <= set(names())
