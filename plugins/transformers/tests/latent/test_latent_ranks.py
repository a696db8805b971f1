"""Latent attention on two ranks: heads are cut, latents are not, so one rank saves a page and both read it."""

import time

import pytest

import stepwell

pytest.importorskip("stepwell_file")

ANSWER, PAGE = 8, 4
PAGE_BYTES = PAGE * 2 * (24 + 8) * 4
"""Of two layers' latents and turned keys in float32."""
LENGTHS = (70, 79, 88)


def prompts(seed):
    """Of the same lengths, whatever the seed."""
    return [[(seed * at + 31 * number) % 290 + 3 for at in range(length)] for number, length in enumerate(LENGTHS)]


def engine(folder, pages, ranks):
    return stepwell.Engine(
        runner={"use": "transformers", "model": str(folder), "device": "cpu", "dtype": "float32"},
        cache={"page_size": PAGE, "device_pages": 64, "host_pages": 240},
        write={"use": "write_through"},
        storage={"use": "file", "path": str(pages), "gib": 0.1},
        prefetch={"use": "wait_complete"},
        engine={"chunk": 24},
        ranks={"tp": ranks},
    )


def settled(served):
    """The bytes that were saved and stored, once all that can be is: full pages of every prompt and its answer."""
    pages = sum((length + ANSWER - 1) // PAGE for length in LENGTHS)
    deadline = time.monotonic() + 20
    while True:
        stats = served.stats()
        found = stats["bytes_saved"], stats["bytes_stored"]
        if found == (pages * PAGE_BYTES, pages * PAGE_BYTES) or time.monotonic() > deadline:
            return found, pages * PAGE_BYTES
        time.sleep(0.05)


def test_latents_are_saved_and_stored_once_and_read_by_both_ranks(latent, truth, tmp_path):
    """As many bytes with two ranks as with one, in host memory and in storage; both read what one has stored."""
    folder = latent("deepseek-v3")
    for ranks, seed in ((1, 7), (2, 11)):
        with engine(folder, tmp_path, ranks) as served:

            def ask(prompt, served=served):
                done = served.generate(prompt, max_tokens=ANSWER, ignore_eos=True)
                truth(folder, prompt, ANSWER).check(done.tokens)
                return done.cached

            for prompt in prompts(seed):
                ask(prompt)
            (saved, stored), want = settled(served)
            assert (saved, stored) == (want, want), f"{ranks} ranks"
            if ranks == 2:
                assert ask(prompts(7)[-1]).storage > 0, "two ranks read what one has stored"
