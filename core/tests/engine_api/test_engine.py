"""`stepwell.Engine` as its users see it."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import stepwell
from stepwell.api import Completion, Engine, Options, RequestFailed
from stepwell.builtin.sim import SimConfig, answer
from stepwell.engine.local import LocalEngine
from stepwell.engine.messages import Output
from stepwell.errors import ConfigError, StepwellError
from stepwell.schedule.request import Request
from stepwell.types import Sampling

SMALL = {"cache.page_size": 4, "cache.device_pages": 64, "runner.eos_every": 0}
TEXT = "Once upon a time, in a cache of three tiers"


def said(text: str, max_tokens: int, **sampling: object) -> tuple[int, ...]:
    """What the sim runner answers, worked out without an engine."""
    prompt = np.frombuffer(text.encode(), np.uint8).astype(np.int32).tobytes()
    return answer(SimConfig(eos_every=0), prompt, Sampling(max_tokens=max_tokens, **sampling))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with stepwell.Engine(SMALL, runner="sim") as made:
        yield made


def test_a_prompt_is_answered(engine: Engine) -> None:
    completion = engine.generate(TEXT, max_tokens=12)
    assert completion.tokens == said(TEXT, 12)
    assert completion.text == bytes(completion.tokens).decode(errors="replace")
    assert (completion.finish_reason, completion.prompt_tokens, completion.completion_tokens) == ("length", 43, 12)
    assert completion.logprobs is None
    assert engine.generate(TEXT, max_tokens=12).cached.device == 40


def test_several_prompts_come_back_in_order(engine: Engine) -> None:
    texts = [f"prompt number {number}" for number in range(6)]
    answers = engine.generate(texts, max_tokens=5)
    assert [one.tokens for one in answers] == [said(text, 5) for text in texts]
    assert engine.generate([], max_tokens=5) == []


def test_token_ids_are_prompts_too(engine: Engine) -> None:
    ids = list(TEXT.encode())
    assert engine.generate(ids, max_tokens=6).tokens == said(TEXT, 6)
    both = engine.generate([ids, ids[:9]], max_tokens=6)
    assert [one.tokens for one in both] == [said(TEXT, 6), said(TEXT[:9], 6)]
    with pytest.raises(ValueError, match="token ids from 0 to 256"):
        engine.generate([1, 2, 300])


def test_a_stream_is_the_same_text_in_pieces(engine: Engine) -> None:
    stream = engine.stream(TEXT, max_tokens=20)
    with pytest.raises(RequestFailed, match="not read to its end"):
        _ = stream.completion
    pieces = list(stream)
    assert len(pieces) > 1
    assert "".join(pieces) == stream.completion.text == engine.generate(TEXT, max_tokens=20).text


def test_a_stream_closed_early_is_aborted(engine: Engine) -> None:
    stream = engine.stream(TEXT, max_tokens=200)
    next(stream)
    stream.close()
    assert list(stream) == []
    engine.generate("something else", max_tokens=1)
    assert engine.stats()["running"] == 0


def test_stop_strings_end_the_answer_and_the_request(engine: Engine) -> None:
    whole = engine.generate(TEXT, max_tokens=40)
    stop = whole.text[7:9]
    before = whole.text[: whole.text.find(stop)]
    completion = engine.generate(TEXT, max_tokens=40, stop=stop)
    assert completion.text == before
    assert completion.finish_reason == "stop"
    assert completion.completion_tokens == len(completion.tokens) <= whole.text.find(stop) + len(stop)
    assert engine.generate(TEXT, max_tokens=40, stop=["never this", stop]).text == before


def test_chat_uses_the_template(engine: Engine) -> None:
    messages = [{"role": "user", "content": "hello"}]
    completion = engine.chat(messages, max_tokens=4)
    assert completion.prompt_tokens == len("<user>hello") + 1 + len("<assistant>")
    assert "".join(engine.stream(messages, max_tokens=4)) == completion.text
    with pytest.raises(ValueError, match="role"):
        engine.chat([{"role": "nobody", "content": ""}])


def test_sampling_options(engine: Engine) -> None:
    hot = {"temperature": 1.0, "seed": 7}
    assert engine.generate(TEXT, max_tokens=8, **hot).tokens == said(TEXT, 8, **hot)  # type: ignore[arg-type]
    assert len(engine.generate(TEXT, max_tokens=3, logprobs=1).logprobs or ()) == 3
    stop = said(TEXT, 8)[4]
    ended = engine.generate(TEXT, max_tokens=8, stop_ids=(stop,))
    assert ended.finish_reason == "stop" and ended.tokens[-1] == stop


@pytest.mark.parametrize(
    ("options", "error", "sentence"),
    [
        ({"max_tokens": 0}, ValueError, "max_tokens: 0 is not between 1"),
        ({"top_p": 1.5}, ValueError, "top_p: 1.5"),
        ({"temperature": "hot"}, ValueError, "^temperature: expected `float`, got `str`$"),
        ({"stop": ""}, ValueError, "^stop: '' is no text"),
        ({"stop": 5}, ValueError, "^stop: 5 is no text"),
        ({"temprature": 1.0}, TypeError, "no such option: temprature; have .*temperature"),
    ],
)
def test_wrong_options_are_said(
    engine: Engine, options: dict[str, object], error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        engine.generate(TEXT, **options)  # type: ignore[call-overload]


@pytest.mark.parametrize("prompt", [None, 5, [1, "a"], [-1], [2**40], [{"role": "user", "content": "x"}, "y"]])
def test_what_is_no_prompt_is_one_sentence(engine: Engine, prompt: object) -> None:
    with pytest.raises(ValueError, match="a prompt is text, messages, or token ids from 0 to"):
        engine.stream(prompt)  # type: ignore[arg-type]


@pytest.mark.parametrize("messages", ["hello", {"role": "user", "content": "x"}, ["hello"], [1, 2]])
def test_what_is_no_conversation_is_one_sentence(engine: Engine, messages: object) -> None:
    with pytest.raises(ValueError, match="messages: write a list of"):
        engine.chat(messages)  # type: ignore[arg-type]


def test_what_does_not_fit_raises_with_the_limit(engine: Engine) -> None:
    with pytest.raises(RequestFailed, match="256"):
        engine.generate("x" * 300, max_tokens=5)
    with pytest.raises(RequestFailed):
        engine.generate(["fine", "x" * 300], max_tokens=5)
    engine.audit()


def test_salts_share_nothing_and_an_unkept_request_leaves_nothing(engine: Engine) -> None:
    engine.flush()
    engine.generate(TEXT, max_tokens=2, salt="one")
    assert engine.generate(TEXT, max_tokens=2, salt="two").cached.total == 0
    assert engine.generate(TEXT, max_tokens=2, salt="").cached.total == 0
    assert engine.generate(TEXT, max_tokens=2, salt="one").cached.total == 40
    assert engine.generate("q" * 30, max_tokens=2, store=False).cached.total == 0
    assert engine.generate("q" * 30, max_tokens=2).cached.total == 0


def test_many_threads_may_ask_at_once(engine: Engine) -> None:
    answers: dict[int, Completion] = {}

    def ask(number: int) -> None:
        answers[number] = engine.generate(f"{number} " * 5, max_tokens=8)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert {number: one.tokens for number, one in answers.items()} == {
        number: said(f"{number} " * 5, 8) for number in range(12)
    }


def test_async_answers(engine: Engine) -> None:
    async def check() -> None:
        answers = await asyncio.gather(*(engine.agenerate(f"async {number}", max_tokens=6) for number in range(5)))
        assert [one.tokens for one in answers] == [said(f"async {number}", 6) for number in range(5)]
        stream = engine.astream(TEXT, max_tokens=9)
        assert "".join([piece async for piece in stream]) == stream.completion.text
        early = engine.astream(TEXT, max_tokens=200)
        await anext(early)
        await early.aclose()
        stopped = await engine.agenerate(TEXT, max_tokens=40, stop=stream.completion.text[3:5])
        assert stopped.finish_reason == "stop"
        with pytest.raises(RequestFailed):
            await engine.agenerate("x" * 300)
        waiting = asyncio.create_task(engine.agenerate(TEXT, max_tokens=100))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(asyncio.wait_for(check(), 30))
    assert engine.stats()["waiting"] == 0


def test_configs_come_from_files_mappings_and_arguments(tmp_path: Path) -> None:
    file = tmp_path / "site.toml"
    file.write_text('[runner]\nuse = "sim"\n[cache]\npage_size = 8\ndevice_pages = 32\n')
    with Engine(file, sets=["cache.device_pages=33"]) as made:
        assert made.hello.page_size == 8
        assert made.stats()["device_pages_total.full"] == 33
    with Engine.load({"runner": {"use": "sim", "model": "other"}}, cache={"page_size": 2, "device_pages": 9}) as made:
        assert (made.hello.model, made.hello.page_size) == ("other", 2)
        assert any(line.startswith("device full: 9 pages = 18 tokens") for line in made.summary)


def test_wrong_configs_are_one_sentence() -> None:
    with pytest.raises(ConfigError, match=r"^runner\.use = 'simm' \(argument\)"):
        Engine(runner="simm")
    with pytest.raises(ConfigError, match=r"smollm: there is no such config file; .*Engine\(model='smollm'\)"):
        Engine("smollm")
    with pytest.raises(ConfigError, match=r"did you mean device_pages\?"):
        Engine(runner="sim", cache={"device_page": 3})


def test_a_closed_engine_says_so_and_closing_twice_is_fine() -> None:
    made = Engine(SMALL, runner="sim")
    stream = made.stream(TEXT, max_tokens=1)
    list(stream)
    made.close()
    made.close()
    with pytest.raises(RequestFailed, match="the engine is closed"):
        made.generate(TEXT)


def test_a_forgotten_engine_ends_its_thread() -> None:
    def alive() -> int:
        return sum(thread.name == "stepwell-engine" for thread in threading.enumerate())

    before = alive()
    made = Engine(SMALL, runner="sim")
    assert alive() == before + 1
    del made
    gc.collect()
    assert alive() == before


def test_engine_is_imported_only_when_asked_for() -> None:
    import subprocess
    import sys

    program = (
        "import sys, stepwell; assert 'stepwell.api' not in sys.modules and 'zmq' not in sys.modules\n"
        "stepwell.Engine; assert 'stepwell.api' in sys.modules and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    with pytest.raises(AttributeError, match="no attribute 'Engin'"):
        _ = stepwell.Engin


def test_b132_what_places_a_request_reaches_the_engine_from_every_call(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Request] = []
    submit = LocalEngine.submit

    def spy(self: LocalEngine, request: Request, take: Callable[[Output], object]) -> None:
        seen.append(request)
        submit(self, request, take)

    monkeypatch.setattr(LocalEngine, "submit", spy)
    options: Options = {"routing_key": "k", "tenant": "t", "priority": -7, "max_tokens": 1}
    with stepwell.Engine(SMALL, runner="sim") as engine:
        engine.generate(TEXT, **options)
        engine.generate([TEXT, TEXT], **options)
        engine.chat([{"role": "user", "content": TEXT}], **options)
        list(engine.stream(TEXT, **options))
        asyncio.run(engine.agenerate(TEXT, **options))
        assert [(one.routing_key, one.tenant, one.priority) for one in seen] == [("k", "t", -7)] * 6
        seen.clear()
        engine.generate(["a", "b", "c"], max_tokens=1, routing_key=["x", "y", "x"], tenant="t")
        assert [(one.tokens[0:1], one.routing_key, one.tenant) for one in seen] == [
            (b"a", "x", "t"),
            (b"b", "y", "t"),
            (b"c", "x", "t"),
        ]
        with pytest.raises(ValueError, match="2 keys for 3 prompts"):
            engine.generate(["a", "b", "c"], routing_key=["x", "y"])


def test_stats_say_what_keys_and_tenants_had() -> None:
    with stepwell.Engine({**SMALL, "engine.count_by": ["routing_key", "tenant"]}, runner="sim") as engine:
        engine.generate(["a", "bb"], max_tokens=4, routing_key=["x", "y"], tenant="t")
        engine.generate("c", max_tokens=4)
        stats = engine.stats()
    queue = stats["queue_seconds"]
    assert queue["count"] == sum(queue["up_to"].values()) == stats["admissions"] == 3
    assert 0 <= queue["sum"] < 60
    assert {name: row["prompt_tokens"] for name, row in stats["by"]["routing_key"].items()} == {"x": 1, "y": 2}
    row = stats["by"]["tenant"]["t"]
    assert (row["requests"], row["admissions"], row["generated_tokens"]) == (2, 2, 8)
    assert (row["waiting"], row["running"]) == (0, 0)
    assert stats["last_fault"] == ""


@pytest.mark.parametrize(
    "option",
    [
        {"salt": 5},
        {"store": "no"},
        {"ttl": "1"},
        {"priority": None},
        {"priority": 2**63},
        {"routing_key": 5},
        {"routing_key": ""},
        {"routing_key": ["a"]},
        {"tenant": 5},
        {"tenant": "t" * 513},
    ],
)
def test_an_option_of_another_kind_is_a_sentence(option):
    with stepwell.Engine(runner="sim", cache={"device_pages": 16}) as engine:
        (name,) = option
        with pytest.raises(ValueError, match=f"^{name}: "):
            engine.generate("hello", max_tokens=1, **option)


# --- storage ---------------------------------------------------------------------------------------------------------


def test_storage_is_attached_and_detached_while_it_runs() -> None:
    tiers = {**SMALL, "cache.host_pages": 128, "write.use": "write_through"}
    with stepwell.Engine(tiers, runner="sim") as engine:
        assert engine.storage()["attached"] is False and not engine.hello.storage
        assert engine.attach_storage(use="memory", gib=0.25)["settings"] == {"gib": 0.25}
        assert engine.hello.storage
        assert engine.generate(TEXT, max_tokens=12).tokens == said(TEXT, 12)
        with pytest.raises(StepwellError, match="is attached"):
            engine.attach_storage(use="memory")
        with pytest.raises(ConfigError, match="did you mean gib"):
            engine.attach_storage(use="memory", replace=True, gip=1.0)
        engine.attach_storage(use="memory", replace=True)
        assert engine.clear_storage() >= 0
        assert engine.detach_storage()["closed"] is True
        with pytest.raises(StepwellError, match="no storage is attached"):
            engine.clear_storage()
        engine.audit()
