"""Small random models in folders, and their own `generate` as ground truth."""

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, PreTrainedTokenizerFast, Qwen3Config

VOCAB = 320
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 2048,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.3,
}
CONFIGS = {
    "llama": lambda: LlamaConfig(**SIZES),
    "qwen3": lambda: Qwen3Config(**SIZES),
    "mistral": lambda: MistralConfig(**SIZES, sliding_window=None),
}


def make_model(folder: Path, kind: str, seed: int = 0) -> Path:
    """A random model with a byte-level tokenizer."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(CONFIGS[kind]())
    model.generation_config.eos_token_id = 2
    model.save_pretrained(folder)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2, **{letter: at for at, letter in enumerate(letters, 3)}}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>")
    fast.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def models_dir(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    return {kind: make_model(root / kind, kind) for kind in CONFIGS}


class Truth:
    """Greedy answers of transformers' own generate, remembered."""

    def __init__(self, folder):
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.known = {}

    def answer(self, prompt, count):
        key = (tuple(prompt), count)
        if key not in self.known:
            with torch.inference_mode():
                out = self.model.generate(
                    torch.tensor([prompt]), max_new_tokens=count, do_sample=False, eos_token_id=None, pad_token_id=0
                )
            self.known[key] = out[0, len(prompt) :].tolist()
        return self.known[key]

    def same(self, prompt, got, count):
        """Equal, or the first difference is where the two best logits are a tie within 1e-4."""
        want = self.answer(prompt, count)
        if list(got) == want:
            return True
        at = next(i for i, (a, b) in enumerate(zip(got, want, strict=False)) if a != b)
        with torch.inference_mode():
            logits = self.model(torch.tensor([[*prompt, *want[:at]]])).logits[0, -1]
        best = logits.topk(2).values
        return bool(best[0] - best[1] <= 1e-4)


@pytest.fixture(scope="session")
def truths(models_dir):
    return {kind: Truth(folder) for kind, folder in models_dir.items()}


@pytest.fixture
def new_model():
    return make_model


@pytest.fixture
def truth_of():
    return Truth
