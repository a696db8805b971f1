"""The whole engine over small random models says what transformers' own generate says, with every cache feature on."""

import random
from concurrent.futures import ThreadPoolExecutor

import pytest

import stepwell

ANSWER = 12


def prompts(seed, count=6):
    """Prompts of many lengths; most share a beginning."""
    rng = random.Random(seed)
    shared = [rng.randrange(3, 300) for _ in range(90)]
    found = []
    for number in range(count):
        head = shared[: rng.choice([0, 17, 48, 90])]
        found.append(head + [rng.randrange(3, 300) for _ in range(rng.choice([1, 5, 16, 33, 70]) + number)])
    return found


def engine(folder, **settings):
    runner = {
        "use": "transformers",
        "model": str(folder),
        "device": "cpu",
        "dtype": "float32",
        **settings.pop("runner", {}),
    }
    return stepwell.Engine(runner=runner, **settings)


def pairwise():
    """Every pair of values of two options occurs; most pairs in one line."""
    tight, wide = {"device_pages": "tight"}, {"device_pages": "wide"}
    return [
        ("llama", 1, 7, "write_through", tight, 1, True),
        ("llama", 16, 256, "write_back", tight, 2, True),
        ("llama", 64, 64, "write_through_selective", wide, 4, False),
        ("qwen3", 16, 16, "write_through", wide, 4, True),
        ("qwen3", 1, 256, "write_through_selective", tight, 2, True),
        ("qwen3", 64, 40, "write_back", tight, 1, True),
        ("mistral", 64, 256, "write_through", tight, 4, True),
        ("mistral", 16, 33, "write_through_selective", tight, 1, False),
        ("mistral", 1, 64, "write_back", wide, 4, True),
    ]


def all_right(folder, truth, settings, asked, threads):
    """So many at a time ask the same three times over: every answer is right, and some of it came from the cache."""
    with engine(folder, **settings) as served, ThreadPoolExecutor(threads) as pool:

        def ask(prompt):
            return served.generate(prompt, max_tokens=ANSWER, ignore_eos=True).tokens

        for _ in range(3):
            answers = list(pool.map(ask, asked))
            for prompt, answer in zip(asked, answers, strict=True):
                truth(folder, prompt, ANSWER).check(answer)
        stats = served.stats()
        assert stats["cached_device"] + stats["cached_host"] + stats["cached_storage"] > 0


@pytest.mark.parametrize(("kind", "page", "chunk", "write", "pool", "threads", "storage"), pairwise())
def test_greedy_answers_equal_generate(tiny, truth, tmp_path, kind, page, chunk, write, pool, threads, storage):
    tokens = 260 if pool["device_pages"] == "tight" else 2000
    settings = {
        "cache": {"page_size": page, "device_pages": max(tokens // page, 4), "host_pages": max(1200 // page, 8)},
        "write": {"use": write},
        "engine": {"chunk": chunk},
    }
    if storage:
        settings["storage"] = {"use": "memory"}
    all_right(tiny(kind), truth, settings, prompts(page + len(kind)), threads)


def small(page, group, window):
    """Pools in which little stays: a window's with room for what runs, and on host for some windows."""
    need = -(-window // page) + 2
    return {group: {"device_pages": max(4 * need + 40 // page, 6), "host_pages": 6 * need}}


@pytest.mark.parametrize(
    ("kind", "group", "window", "page", "chunk", "write", "tight", "threads", "storage"),
    [
        ("gpt-oss", "swa", 9, 16, 40, "write_through", True, 4, True),
        ("gpt-oss", "swa", 9, 1, 7, "write_back", False, 2, True),
        ("gemma2", "swa", 12, 4, 33, "write_back", True, 2, True),
        ("gemma3", "swa", 16, 64, 64, "write_through", True, 1, True),
        ("gemma3", "swa", 16, 1, 256, "write_through_selective", True, 4, False),
        ("mistral-sliding", "swa", 11, 4, 16, "write_through", True, 4, True),
        ("mistral-sliding", "swa", 11, 16, 256, "write_back", False, 1, True),
        ("llama4", "chunked", 24, 16, 33, "write_through_selective", True, 2, True),
        ("llama4", "chunked", 24, 1, 40, "write_through", False, 4, True),
        ("llama4", "chunked", 24, 64, 256, "write_back", True, 4, False),
        ("qwen3-sliding", "swa", 8, 64, 7, "write_through", False, 4, True),
        ("qwen2-types", "swa", 13, 4, 64, "write_through_selective", False, 1, True),
        ("cohere2", "swa", 10, 1, 16, "write_through", True, 2, True),
        ("olmo3", "swa", 14, 16, 7, "write_back", True, 4, True),
        ("mixtral", "full", 0, 4, 33, "write_through", False, 4, True),
        ("qwen3-moe", "full", 0, 16, 256, "write_through", False, 2, True),
    ],
)
def test_answers_of_models_with_windows_equal_generate(
    tiny, truth, kind, group, window, page, chunk, write, tight, threads, storage
):
    """With pools so small that windows are evicted, come back from host and storage, and requests are retracted."""
    tokens = 200 if tight else 2000
    cache = {"page_size": page, "device_pages": max(tokens // page, 4), "host_pages": max(800 // page, 8)}
    if tight:
        cache["groups"] = small(page, group, window)
    settings = {"cache": cache, "write": {"use": write}, "engine": {"chunk": chunk}}
    if storage:
        settings |= {"storage": {"use": "memory"}, "prefetch": {"use": "wait_complete"}}
    all_right(tiny(kind), truth, settings, prompts(11), threads)


@pytest.mark.parametrize("kind", ["gpt-oss", "mistral-sliding", "llama4", "gemma3", "mimo"])
@pytest.mark.parametrize("page", [1, 16])
def test_windows_come_back_from_host(tiny, truth, kind, page):
    """Others take the device's pages; then a conversation goes on, and its window and its full attention are loaded."""
    first, *others = [prompt[:90] for prompt in prompts(2, count=14) if len(prompt) >= 90][:6]
    device = 56 if kind == "mistral-sliding" else 128  # of which windows alone would take too little to be evicted
    cache = {"page_size": page, "device_pages": device // page, "host_pages": 4000 // page}
    with engine(tiny(kind), cache=cache, write={"use": "write_through"}, engine={"chunk": 16}) as served:

        def ask(prompt):
            done = served.generate(prompt, max_tokens=ANSWER, ignore_eos=True)
            truth(tiny(kind), prompt, ANSWER).check(done.tokens)
            return done

        answer = list(ask(first).tokens)
        for other in others:
            ask(other[::-1])
        assert ask(first + answer + [5, 6, 7]).cached.host > 0


@pytest.mark.parametrize("kind", ["llama", "gpt-oss", "mistral-sliding", "llama4"])
def test_aborts_and_retraction_change_no_answer(tiny, truth, kind):
    asked = prompts(5, count=8)
    pages = 30 if kind == "mistral-sliding" else 110  # its windows are all that it keeps
    cache = {"page_size": 4, "device_pages": pages, "host_pages": 200}
    with engine(tiny(kind), cache=cache, write={"use": "write_through"}, engine={"chunk": 32}) as served:
        rng = random.Random(1)
        with ThreadPoolExecutor(8) as pool:

            def leave(prompt):
                stream = served.stream(prompt, max_tokens=60, ignore_eos=True)
                for _, _text in zip(range(rng.randrange(0, 6)), stream, strict=False):
                    pass
                stream.close()

            def ask(prompt):
                return served.generate(prompt, max_tokens=60, ignore_eos=True).tokens

            left = [pool.submit(leave, prompt) for prompt in asked * 2]
            answers = list(pool.map(ask, asked))
            for future in left:
                future.result()
        for prompt, answer in zip(asked, answers, strict=True):
            truth(tiny(kind), prompt, 60).check(answer)
        if kind != "mistral-sliding":  # what a window takes is known when a request is admitted
            assert served.stats()["retractions"] > 0


@pytest.mark.parametrize("retain", ["prompt-ends", "tail"])
def test_after_a_restart_the_same_prompt_is_a_hit_where_its_end_was_kept(tiny, truth, tmp_path, retain):
    pytest.importorskip("stepwell_file")
    pytest.importorskip("stepwell_retention")
    settings = {
        "cache": {"page_size": 4, "device_pages": 100, "host_pages": 100},
        "write": {"use": "write_through"},
        "retain": {"use": retain},
        "storage": {"use": "file", "path": str(tmp_path / "pages"), "gib": 0.1},
        "prefetch": {"use": "wait_complete"},
    }
    prompt = prompts(9)[-1]
    for start in range(2):
        with engine(tiny("gpt-oss"), **settings) as served:
            done = served.generate(prompt, max_tokens=ANSWER, ignore_eos=True)
            truth(tiny("gpt-oss"), prompt, ANSWER).check(done.tokens)
            usable = (len(prompt) - 1) // 4 * 4 if start and retain == "prompt-ends" else 0
            assert done.cached.storage == usable


@pytest.mark.parametrize("kind", ["qwen3", "gpt-oss", "gemma3", "mistral-sliding", "llama4"])
def test_a_restart_finds_its_pages_in_storage(tiny, truth, tmp_path, kind):
    pytest.importorskip("stepwell_file")
    settings = {
        "cache": {"page_size": 8, "device_pages": 100, "host_pages": 100},
        "write": {"use": "write_through"},
        "storage": {"use": "file", "path": str(tmp_path / "pages"), "gib": 0.1},
        "prefetch": {"use": "wait_complete"},
    }
    prompt = prompts(9)[-1]
    for start in range(2):
        with engine(tiny(kind), **settings) as served:
            done = served.generate(prompt, max_tokens=ANSWER, ignore_eos=True)
            truth(tiny(kind), prompt, ANSWER).check(done.tokens)
            assert (done.cached.storage > 0) == (start == 1)
            prompt = [*prompt, *done.tokens, 5, 6, 7]


def test_b059_other_weights_of_the_same_name_share_no_pages(new_model, truth, tmp_path):
    pytest.importorskip("stepwell_file")
    prompt = prompts(3)[-1]
    for seed in (0, 1):
        folder = new_model(tmp_path / str(seed) / "same", "llama", seed)
        settings = {
            "cache": {"page_size": 8, "device_pages": 100, "host_pages": 100},
            "write": {"use": "write_through"},
            "storage": {"use": "file", "path": str(tmp_path / "pages"), "gib": 0.1},
            "prefetch": {"use": "wait_complete"},
        }
        with engine(folder, **settings) as served:
            done = served.generate(prompt, max_tokens=ANSWER, ignore_eos=True)
        assert done.cached.total == 0
        truth(folder, prompt, ANSWER).check(done.tokens)
