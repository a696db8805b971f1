"""Tokenizers of each kind: the same tokens as transformers, texts that come in pieces, templates."""

import json
import random
import subprocess
import sys

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from stepwell import ConfigError
from stepwell_transformers.codec import TransformersCodec
from stepwell_transformers.config import TransformersConfig
from stepwell_transformers.template import ChatTemplate

TEXTS = [
    "Once upon a time, in a land far away, there was a small model that could.\n\n  Indented, too.",
    "Größenwahn, façade, naïve, 東京タワー, Здравствуй, 😀👩‍🚀🏳️‍🌈, e\u0301, \u200b\ufeff",
    "def f(x):\n\treturn {'a': x ** 2}  # comment\r\n",
    " leading and trailing ",
    "1234567890 3.14159 -42",
]
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}\n    {% if message['role'] not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('only system, user and assistant speak here') }}{% endif %}\n"
    "<|{{ message.role }}|>{{ message['content'] | trim }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIAL = ["<pad>", "<s>", "<|end|>"]


def byte_level():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.add_tokens([AddedToken("<tool>", normalized=False), AddedToken("naïve 東", normalized=False)])
    return tokenizer


def byte_fallback():
    """As Llama 2 and Gemma write theirs: words begin with a mark, unknown characters are bytes."""
    words = ["▁", "▁Once", "▁upon", "▁a", "▁time", "e", "o", "n", "ö", "é", "▁far", ",", "t", "i", "m", "r", "s"]
    names = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    tokenizer = Tokenizer(models.BPE({name: i for i, name in enumerate(names)}, [], byte_fallback=True, unk_token=None))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in SPECIAL])
    return tokenizer


KINDS = {"byte_level": byte_level, "byte_fallback": byte_fallback}


@pytest.fixture(scope="module", params=sorted(KINDS))
def folder(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=KINDS[request.param](), bos_token="<s>", eos_token="<|end|>", pad_token="<pad>"
    )
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({"eos_token_id": 2}))
    (folder / "model.safetensors").touch()
    return folder


@pytest.fixture(scope="module")
def codec(folder, place):
    return TransformersCodec(TransformersConfig(model=str(folder)), place)


@pytest.fixture(scope="module")
def plain(folder):
    return AutoTokenizer.from_pretrained(folder)


def ids(tokens):
    return np.frombuffer(tokens, np.int32).tolist()


def streamed(codec, tokens, size=1):
    stream = codec.stream()
    return "".join([stream.add(tokens[at : at + size]) for at in range(0, len(tokens), size)] + [stream.end()])


@pytest.mark.parametrize("text", TEXTS)
def test_tokens_are_those_of_transformers(codec, plain, text):
    assert ids(codec.encode(text)) == plain.encode(text)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_pieces_add_up_to_the_whole_text(codec, plain, text, size):
    tokens = ids(codec.encode(text))
    assert streamed(codec, tokens, size) == plain.decode(tokens, skip_special_tokens=True)


def test_pieces_of_any_tokens_add_up_to_what_they_decode_to(codec, plain):
    """Sampled tokens need make no sense: half characters, special tokens, anything."""
    chance = random.Random(4)
    for _ in range(400):
        tokens = [chance.randrange(len(plain)) for _ in range(chance.randrange(1, 24))]
        want = plain.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        assert streamed(codec, tokens, chance.choice([1, 1, 2, 5])) == want, tokens


def test_half_a_character_is_held_back(codec):
    tokens = ids(codec.encode("😀e"))
    stream = codec.stream()
    texts = [stream.add([token]) for token in tokens] + [stream.end()]
    assert "�" not in "".join(texts)
    assert "".join(texts).strip() == "😀e"
    stream = codec.stream()
    assert [stream.add([token]) for token in tokens[:-2]][-1] == ""
    assert stream.end().endswith("�")


def test_pieces_are_the_bytes_of_the_text(codec):
    for text in TEXTS:
        joined = b"".join(codec.piece(token) for token in ids(codec.encode(text)))
        assert joined.decode() in (text, " " + text)
    assert codec.piece(10**6) == b""


def test_a_conversation_is_written_as_transformers_writes_it(codec, plain):
    messages = [{"role": "system", "content": "Be brief. "}, {"role": "user", "content": "  naïve question\n"}]
    want = plain.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert ids(codec.chat(messages)) == plain.encode(want, add_special_tokens=False)


def test_a_role_that_the_template_refuses_is_a_value_error_in_its_words(codec):
    with pytest.raises(ValueError, match="only system, user and assistant speak here"):
        codec.chat([{"role": "tool", "content": "x"}])


def test_text_that_is_no_unicode_is_a_value_error(codec):
    with pytest.raises(ValueError, match="no valid Unicode"):
        codec.encode("\ud800")


def test_what_it_says_of_itself(codec, plain):
    assert codec.vocab == len(plain)
    assert codec.eos == (2,)


def test_a_codec_needs_no_torch(folder, place):
    """A front end stays small: neither torch nor transformers is imported, once the tokenizer has been written down."""
    TransformersCodec(TransformersConfig(model=str(folder)), place)
    code = (
        "import sys, logging, types, pathlib\n"
        "from stepwell_transformers.codec import TransformersCodec\n"
        "from stepwell_transformers.config import TransformersConfig\n"
        f"place = types.SimpleNamespace(state_dir=pathlib.Path({str(place.state_dir)!r}), log=logging.getLogger())\n"
        f"TransformersCodec(TransformersConfig(model={str(folder)!r}), place).encode('hello')\n"
        "print(sorted({'torch', 'transformers', 'huggingface_hub'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_changed_tokenizer_is_read_anew(tmp_path, place):
    for number, name in enumerate(("<one>", "<two>")):
        tokenizer = byte_level()
        tokenizer.add_tokens([name])
        PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(tmp_path)
        (tmp_path / "config.json").write_text("{}")
        (tmp_path / "model.safetensors").touch()
        codec = TransformersCodec(TransformersConfig(model=str(tmp_path)), place)
        assert len(ids(codec.encode(name))) == 1
        assert (len(ids(codec.encode("<one>"))) == 1) == (number == 0)
        assert codec.eos == ()
        with pytest.raises(ValueError, match="no chat template"):
            codec.chat([{"role": "user", "content": "x"}])


def test_a_folder_without_a_tokenizer_is_one_sentence(tmp_path, place):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(ConfigError, match="holds no tokenizer"):
        TransformersCodec(TransformersConfig(model=str(tmp_path)), place)
    (tmp_path / "tokenizer.json").write_text("{ broken")
    with pytest.raises(ConfigError, match=r"the tokenizer in .* cannot be read"):
        TransformersCodec(TransformersConfig(model=str(tmp_path)), place)


def test_templates_may_loop_break_dump_json_and_ask_the_date():
    source = (
        "{%- for m in messages %}{%- if loop.index0 > 0 %}{%- break %}{%- endif %}{{ m | tojson }}{%- endfor %}"
        "{{ strftime_now('%Y') | length }}{{ tools is none }}"
    )
    text = ChatTemplate(source, {}).render([{"role": "user", "content": "ä<"}, {"role": "user", "content": "no"}])
    assert text == '{"role": "user", "content": "ä<"}4True'


def test_a_template_cannot_reach_python():
    with pytest.raises(ValueError, match="refuses these messages"):
        ChatTemplate("{{ messages.__class__.__mro__[1].__subclasses__() }}", {}).render([])
    with pytest.raises(ValueError, match="cannot be read"):
        ChatTemplate("{% for", {})
