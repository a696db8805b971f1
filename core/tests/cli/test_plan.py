"""What windows save: against the known gains, and a config that has the pools which were promised."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from stepwell.cache.arena import slot_bytes
from stepwell.cache.groups import group_of
from stepwell.cli.planned import plan
from stepwell.config import Config
from stepwell.models import read_shape
from stepwell.settings import CacheSettings
from stepwell.sizing import kept_at, size
from stepwell.types import Chunked, GroupSpec

PAGE = 64
LENGTHS = (2048, 8192, 32768, 131072)


def mixed(full, sliding, window, *, chunk=None, heads=8, more=1):
    """A config with so many layers; those with a window have `more` times as much KV."""
    kind = "chunked_attention" if chunk else "sliding_attention"
    return {
        "num_hidden_layers": full + sliding,
        "layer_types": ["full_attention"] * full + [kind] * sliding,
        "num_attention_heads": 64,
        "num_key_value_heads": heads,
        "swa_num_key_value_heads": heads * more,
        "head_dim": 64,
        "sliding_window": window,
        "attention_chunk_size": chunk,
    }


MODELS = {
    "gpt-oss-20b": (mixed(12, 12, 128), (1.88, 1.97, 1.99, 2.00), 2.0),
    "Gemma 3 27B": (mixed(10, 52, 1024), (1.72, 3.76, 5.33, 5.96), 6.2),
    "Gemma 2 27B": (mixed(23, 23, 4096), (1.0, 1.33, 1.78, 1.94), 2.0),
    "Llama 4": (mixed(12, 36, None, chunk=8192), (1.0, 1.0, 2.29, 3.37), 4.0),
    "Command-R7B": (mixed(8, 24, 4096), (1.0, 1.6, 2.91, 3.66), 4.0),
    "MiMo-V2-Flash": (mixed(9, 39, 128, more=2), (6.3, 8.5, 9.4, 9.6), 9.7),
    "MiMo-V2.5-Pro": (mixed(10, 60, 128), (5.1, 6.4, 6.8, 7.0), 7.0),
    "Step-3.5-Flash": (mixed(12, 33, 512), (2.2, 3.2, 3.6, 3.7), 3.75),
    "Mistral-7B": (mixed(0, 32, 4096), (1, 2, 8, 32), None),
}


def formula(config, tokens, window):
    """(F*b_f + S*b_s) / (F*b_f + rho*S*b_s) where `window` tokens of the layers with a window are kept."""
    shape = read_shape(config)
    full = sum(layer.items for layer in shape.layers if layer.need.lo(1 << 30) == 0)
    rest = sum(layer.items for layer in shape.layers) - full
    return (full + rest) / (full + min(1, window / tokens) * rest)


@pytest.mark.parametrize("name", MODELS)
def test_the_known_gains(name):
    """They keep the window alone; we keep a page more, so that the same prompt again is a hit."""
    config, known, limit = MODELS[name]
    window = config["attention_chunk_size"] or config["sliding_window"]
    planned = [plan(read_shape(config), tokens, PAGE, {}) for tokens in LENGTHS]
    for tokens, gain, expected in zip(LENGTHS, known, planned, strict=True):
        assert formula(config, tokens, window) == pytest.approx(gain, rel=0.03)
        # A chunk that ends with the prefix is kept for the page below, which needs all of it but that page.
        above = 0 if config["attention_chunk_size"] else PAGE
        assert expected.gain == pytest.approx(formula(config, tokens, window + above))
        assert expected.gain <= formula(config, tokens, window)
    assert planned[0].limit == (None if limit is None else pytest.approx(limit, rel=0.01))
    if limit:
        assert planned[-1].gain < planned[0].limit


@pytest.mark.parametrize("chunk", [1, 16, 24, 100, 8192])
@pytest.mark.parametrize("page", [1, 7, 16, 64, 200])
def test_the_range_of_chunks_is_that_of_all_lengths_around(page, chunk):
    group = group_of(GroupSpec("chunked", Chunked(chunk), 2, (0,)), page)
    shape = read_shape(mixed(1, 1, None, chunk=chunk))
    for tokens in (1, chunk, 2 * chunk + 3, 5000):
        around = [kept_at(group, at) for at in range(tokens, tokens + chunk, page)]
        assert plan(shape, tokens, page, {}).groups[1].pages_range == (min(around), max(around))


def test_chunks_depend_on_where_the_prefix_ends():
    config = mixed(12, 36, None, chunk=8192)
    kept = [plan(read_shape(config), tokens, PAGE, {}).groups[1] for tokens in (24576, 24640, 32704, 32768)]
    assert [group.pages_kept for group in kept] == [128, 1, 127, 128]
    assert {group.pages_range for group in kept} == {(1, 128)}


@pytest.mark.parametrize("tokens", [100, 4096, 32768])
@pytest.mark.parametrize("name", MODELS)
def test_the_config_has_the_pools_that_were_promised(name, tokens):
    shape = read_shape(MODELS[name][0])
    specs = shape.groups()
    planned = plan(shape, tokens, PAGE, {"device": 24, "host": 100, "storage": 500})
    extra = {"cache": tomllib.loads(planned.toml)["cache"]}
    config = Config.load(None, {}, (), flat(extra))
    settings = config.bind("cache", CacheSettings)
    assert (settings.page_size, settings.typical_tokens) == (PAGE, tokens)
    pools = size(config, settings, specs, 1)
    for tier, counts, sizes in zip(
        planned.tiers, (pools.device, pools.host), (pools.page_bytes, pools.slots), strict=False
    ):
        assert list(tier.pages.values()) == list(counts)
        taken = sum(count * one for count, one in zip(counts, sizes, strict=True))
        assert 0.98 * tier.gib < taken / 2**30 <= tier.gib
        fit = min(n / group.pages_kept for n, group in zip(counts, planned.groups, strict=True))
        assert tier.prefixes == pytest.approx(fit, abs=0.01)
        assert sum(tier.shares.values()) == pytest.approx(1, abs=0.02)
    host = planned.tiers[1]
    # Windows for fetches in flight come on top of the formula.
    assert host.prefixes / host.prefixes_full <= planned.gain * 1.01


def flat(table, prefix=""):
    found = {}
    for key, value in table.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found


def test_storage_takes_as_many_as_its_bytes_hold():
    planned = plan(read_shape(mixed(10, 52, 1024)), 32768, PAGE, {"storage": 1000})
    (tier,) = planned.tiers
    assert tier.pages == {} and planned.toml.splitlines() == ["[cache]", "page_size = 64", "typical_tokens = 32768"]
    one = sum(group.pages_kept * slot_bytes(group.bytes_per_page) for group in planned.groups)
    assert tier.prefixes == pytest.approx(1000 * 2**30 / one, abs=0.01)
    assert tier.prefixes / tier.prefixes_full == pytest.approx(planned.gain, rel=0.01)


# --- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture
def gemma(tmp_path: Path) -> Path:
    """A folder with a model's config."""
    folder = tmp_path / "gemma"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "gemma3_text", **mixed(10, 52, 1024)}))
    return folder


def test_it_prints_groups_the_gain_and_a_config(shell, gemma):
    ran = shell.run("plan", str(gemma), "--tokens", "32768", "--host-gib", "100", "--page-size", "64")
    assert ran.code == 0, ran.err
    for text in ("full", "last 1023 tokens", "52", "gain 5.29", "at most 6.20", "host_pages = ", "[cache.groups.swa]"):
        assert text in ran.out
    snippet = tomllib.loads(ran.out[ran.out.index("[cache]") :])
    assert snippet["cache"]["host_pages"] > 20 * snippet["cache"]["groups"]["swa"]["host_pages"]
    ran = shell.run("plan", str(gemma))
    assert ran.code == 0 and "--host-gib" in ran.out


def test_fewer_who_run_leave_more_to_prefixes(shell, gemma):
    few, many = (
        shell.run("plan", str(gemma), "--device-gib", "48", "--page-size", "64", "--json", *running)
        for running in (("--running", "4"), ())
    )
    assert json.loads(few.out)["tiers"][0]["prefixes"] > json.loads(many.out)["tiers"][0]["prefixes"]
    assert tomllib.loads(json.loads(few.out)["toml"])["engine"] == {"max_running": 4}
    assert "engine" not in tomllib.loads(json.loads(many.out)["toml"])


def test_without_windows_there_is_nothing_to_gain(shell, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(mixed(4, 0, None)))
    ran = shell.run("plan", str(tmp_path), "--tokens", "4096")
    assert "4096 tokens takes 32 MiB. No layer has a window or a chunk, so all of it is kept." in ran.out


def test_json_has_groups_and_the_gain(shell, gemma):
    ran = shell.run("plan", str(gemma / "config.json"), "--tokens", "8192", "--page-size", "16", "--json")
    document = json.loads(ran.out)
    assert [(group["name"], group["layers"], group["bytes_per_token"]) for group in document["groups"]] == [
        ("full", 10, 10 * 2048),
        ("swa", 52, 52 * 2048),
    ]
    assert document["gain"] == pytest.approx(62 / (10 + 52 * 65 / 512))


def test_latents_are_counted_once(shell, tmp_path):
    latent = {"num_hidden_layers": 61, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "num_attention_heads": 128}
    (tmp_path / "config.json").write_text(json.dumps(latent))
    document = json.loads(shell.run("plan", str(tmp_path), "--json").out)
    assert document["groups"][0]["bytes_per_token"] == 61 * 576 * 2 and document["gain"] == 1


@pytest.mark.parametrize(
    ("file", "arguments", "sentence"),
    [
        ("{", (), "this is no model's config: "),
        ("[]", (), "a JSON object is wanted"),
        ('{"hidden_size": 8}', (), "the config says no num_hidden_layers"),
        (None, (), "has no config.json"),
        (json.dumps(mixed(1, 1, 8)), ("--device-gib", "1e-9"), "hold no page"),
        (json.dumps(mixed(1, 1, 8)), ("--tokens", "0"), "--tokens"),
        (json.dumps(mixed(1, 1, 8)), ("--host-gib", "0"), "--host-gib"),
    ],
)
def test_a_bad_config_is_said_in_a_sentence(shell, tmp_path, file, arguments, sentence):
    if file is not None:
        (tmp_path / "config.json").write_text(file)
    ran = shell.run("plan", str(tmp_path), *arguments)
    assert ran.code == 2 and sentence in ran.err and "Traceback" not in ran.err


@pytest.mark.parametrize("text", ["[" * 200_000, '{"a":' * 100_000, "9" * 5000, "\0"])
def test_what_no_parser_reads_is_no_config(shell, tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    ran = shell.run("plan", str(tmp_path))
    assert ran.code == 2 and "this is no model's config" in ran.err and ran.err.count("\n") == 1


@pytest.mark.parametrize("name", ["~nobody-of-this-name/x", "a" * 5000, "a" * 300 + "/config.json"])
def test_a_name_that_no_file_can_have(shell, monkeypatch, name):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    ran = shell.run("plan", name)
    assert ran.code == 2 and ran.err.startswith("Error: ")


@pytest.mark.parametrize("tier", ["device", "host", "storage"])
@pytest.mark.parametrize("amount", ["nan", "inf", "1e-300"])
def test_no_amount_of_memory(shell, gemma, tier, amount):
    ran = shell.run("plan", str(gemma), f"--{tier}-gib", amount)
    assert ran.code == 2 and f"{tier}-gib" in ran.err.replace("_", "-")


def test_a_name_is_looked_up_on_the_hub(shell, gemma, monkeypatch):
    asked = []

    def download(name, file, *, local_files_only):
        asked.append((name, file, local_files_only))
        if local_files_only:
            raise OSError("not here")
        return str(gemma / "config.json")

    def model_info(name, *, timeout):
        if name != "some/model":
            raise OSError("no such model\nand more")

    hub = ModuleType("huggingface_hub")
    hub.hf_hub_download = download
    hub.HfApi = lambda: SimpleNamespace(model_info=model_info)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    assert shell.run("plan", "some/model", "--json").code == 0
    assert asked == [("some/model", "config.json", True), ("some/model", "config.json", False)]
    asked.clear()
    ran = shell.run("plan", "some/other")
    assert asked == [("some/other", "config.json", True)], "what the hub does not know is not tried again and again"
    assert ran.code == 2
    assert ran.err.strip() == (
        "Error: there is no file or folder some/other, and the hub gives no config.json of that name: no such model"
    )


def test_without_the_hubs_library_it_is_said_what_to_install(shell, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    ran = shell.run("plan", "some/model")
    assert ran.code == 2 and "install huggingface_hub" in ran.err
    for path in ("./none", "none/config.json", "a/b/c"):
        ran = shell.run("plan", path)
        assert ran.code == 2 and ran.err.strip() == f"Error: there is no file or folder {path}"
