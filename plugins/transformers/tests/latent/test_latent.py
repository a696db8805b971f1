"""Models whose tokens keep latents say what transformers' own generate says, with every cache feature on."""

import random
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import stepwell
from stepwell import ConfigError
from stepwell_kernels import PageShape
from stepwell_transformers.latent import Absorbed, absorb
from stepwell_transformers.model import PagedModel
from stepwell_transformers.prove import prove

ANSWER = 8
LATENT, TURNED, LAYERS = 24, 8, 2
PROVEN = (
    "deepseek-v2-lite",
    "deepseek-v2",
    "deepseek-v3",
    "deepseek-v3-halves",
    "glm4-moe-lite",
    "longcat",
    "minicpm3",
)


def prompts(seed, count=5):
    """Most share a beginning."""
    rng = random.Random(seed)
    shared = [rng.randrange(3, 300) for _ in range(90)]
    return [
        shared[: rng.choice([0, 17, 48, 90])] + [rng.randrange(3, 300) for _ in range(rng.choice([1, 16, 70]) + number)]
        for number in range(count)
    ]


def engine(folder, **settings):
    runner = {"use": "transformers", "model": str(folder), "device": "cpu", "dtype": "float32"}
    return stepwell.Engine(runner=runner, **settings)


def loaded(folder):
    return PagedModel(folder, "it", torch.float32, torch.device("cpu"))


@pytest.mark.parametrize("family", PROVEN)
def test_every_family_is_proven_and_keeps_a_latent_and_a_turned_key(latent, family):
    model = loaded(latent(family))
    prove(model, "it")
    assert model.shapes(4) == [PageShape(LAYERS, 4, 1, LATENT + TURNED, torch.float32, 0, LATENT)]
    (group,) = model.groups
    assert (group.token_bytes, group.heads, group.ranks) == (LAYERS * (LATENT + TURNED) * 4, 1, 1)
    assert sum(isinstance(getattr(part, "expand_kv", None), Absorbed) for part in model.model.modules()) == LAYERS


@pytest.mark.parametrize(
    ("family", "page", "chunk", "write", "pool", "threads"),
    [
        ("deepseek-v2-lite", 4, 7, "write_through", 260, 4),
        ("deepseek-v2", 16, 40, "write_back", 260, 2),
        ("deepseek-v3", 16, 33, "write_through_selective", 2000, 6),
    ],
)
def test_greedy_answers_equal_generate(latent, truth, tmp_path, family, page, chunk, write, pool, threads):
    """Pages are evicted, come back from host and from files, and prompts run by chunks beside decodes."""
    pytest.importorskip("stepwell_file")
    folder, asked = latent(family), prompts(page + len(family))
    settings = {
        "cache": {"page_size": page, "device_pages": pool // page, "host_pages": max(600 // page, 8)},
        "write": {"use": write},
        "engine": {"chunk": chunk},
        "storage": {"use": "file", "path": str(tmp_path / "pages"), "gib": 0.1},
        "prefetch": {"use": "wait_complete"},
    }
    for start in range(2):
        with engine(folder, **settings) as served, ThreadPoolExecutor(threads) as pool_of:

            def ask(prompt, served=served):
                return served.generate(prompt, max_tokens=ANSWER, ignore_eos=True).tokens

            for _ in range(2):
                for prompt, answer in zip(asked, pool_of.map(ask, asked), strict=True):
                    truth(folder, prompt, ANSWER).check(answer)
            stats = served.stats()
        assert stats["cached_device"] + stats["cached_host"] + stats["cached_storage"] > 0
        if start and write == "write_through":
            assert stats["cached_storage"] > 0, "files of the first start are read by the second"


def test_the_own_library_s_attention_expands_latents_as_ever(latent):
    """By any other attention than pages a module does what it does without us."""
    folder = latent("deepseek-v3")
    model = loaded(folder)
    attention = model.model.model.layers[0].self_attn
    latents, turned = torch.randn(1, 1, 5, LATENT), torch.randn(1, 1, 5, TURNED)
    with model.by_itself():
        keys, values = attention.expand_kv(latents, turned)
        assert (keys.shape, values.shape) == ((1, 4, 5, 20), (1, 4, 5, 16))
    keys, values = attention.expand_kv(latents, turned)
    torch.testing.assert_close(keys, torch.cat((latents, turned), -1))
    assert torch.equal(values, latents)


def test_scores_and_values_are_those_of_expanded_latents(latent):
    """q . (W_k c) and W_v (sum of w c), against K and V at full width."""
    model = loaded(latent("deepseek-v2"))
    attention = model.model.model.layers[1].self_attn
    latents, turned = torch.randn(1, 1, 9, LATENT), torch.randn(1, 1, 9, TURNED)
    keys, values = type(attention).expand_kv(attention, latents, turned)
    query = torch.randn(9, 4, 20)
    key = torch.cat((latents, turned), -1)[0, 0]
    want = torch.einsum("thd,hsd->hts", query, keys[0])
    torch.testing.assert_close(torch.einsum("thd,sd->hts", attention.expand_kv.queries(query), key), want)
    weights = torch.softmax(want, -1)
    found = attention.expand_kv.answers(torch.einsum("hts,sd->thd", weights, latents[0, 0]))
    torch.testing.assert_close(found, torch.einsum("hts,hsd->thd", weights, values[0]))


def other(change):
    """A model with one module of latent attention, changed."""

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.kv_b_proj = nn.Linear(LATENT, 4 * 28, bias=False)
            self.qk_nope_head_dim, self.v_head_dim, self.kv_lora_rank = 12, 16, LATENT

        def expand_kv(self, latents, turned):
            return latents, turned

    model = nn.Module()
    model.attention = Attention()
    model.config = type("Config", (), {"kv_lora_rank": LATENT})
    change(model.attention)
    return model


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda module: setattr(module, "expand_kv", None), "no step of its own, expand_kv"),
        (lambda module: setattr(module, "kv_b_proj", nn.Linear(LATENT, 112)), "is no plain product"),
        (lambda module: setattr(module, "kv_b_proj", nn.Linear(7, 112, bias=False)), "has other sizes"),
        (lambda module: delattr(module, "v_head_dim"), "has no v_head_dim"),
        (lambda module: delattr(module, "kv_b_proj"), "no module of it has a kv_b_proj"),
    ],
)
def test_modules_of_another_kind_are_refused_in_a_sentence(change, why):
    with pytest.raises(ConfigError, match=f"latent attention of a kind that is not supported yet .*{why}"):
        absorb(other(change), "it", "paged")


def test_modules_of_this_kind_are_taken():
    model = other(lambda module: None)
    absorb(model, "it", "paged")
    assert isinstance(model.attention.expand_kv, Absorbed)
