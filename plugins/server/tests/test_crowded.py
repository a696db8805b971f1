"""A real server whose device holds half of what comes: what is told of waiting, retraction and refusal is true."""

from __future__ import annotations

import asyncio
import random
import string

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from server_process import real, until

PROMPT, ANSWER, PAGE, FIT = 64, 32, 4, 10
"""Tokens of a prompt (a byte each) and of its answer, of a page, and how many requests the device holds."""
QUEUE = 24
SETS = (
    "runner.pace=0.003",
    f"cache.page_size={PAGE}",
    f"cache.device_pages={FIT * (PROMPT + ANSWER) // PAGE}",
    f"engine.max_waiting={QUEUE}",
    "engine.count_by=routing_key,tenant",
    "server.tenant=header",
)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with real(tmp_path_factory.mktemp("crowded"), *SETS) as one:
        yield one


def text(dice, length=PROMPT):
    return "".join(dice.choices(string.ascii_letters, k=length))


def asked(server, bodies, headers=None):
    """All of these completions at once; the responses."""

    async def everyone():
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=server.url, timeout=60, limits=limits, headers=headers) as client:
            return await asyncio.gather(*(client.post("/v1/completions", json=body) for body in bodies))

    return asyncio.run(everyone())


def metrics(server):
    found = text_string_to_metric_families(server.get("/metrics").text)
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value for family in found for sample in family.samples
    }


def learn(server, dice):
    """Answers much shorter than they may be, from which the engine learns to admit more than fit to their ends."""
    short = {"model": "sim", "max_tokens": 200, "stop_token_ids": list(range(64))}
    for _ in range(4):
        answers = asked(server, [{**short, "prompt": text(dice)} for _ in range(8)])
        assert {one.status_code for one in answers} == {200}


def test_b131_work_done_again_after_a_retraction_is_no_hit(server):
    dice = random.Random(1)
    learn(server, dice)
    before, stats = metrics(server), server.stats()
    body = {"model": "sim", "max_tokens": ANSWER, "ignore_eos": True}
    answers = asked(server, [{**body, "prompt": [text(dice) for _ in range(20)]}])
    usage = answers[0].json()["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (20 * PROMPT, 20 * ANSWER)
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0
    after, now = metrics(server), server.stats()
    for tier in ("device", "host", "storage"):
        assert after["stepwell_prompt_tokens_total", tier] == before["stepwell_prompt_tokens_total", tier] == 0
    assert now["prompt_tokens"] - stats["prompt_tokens"] == 20 * PROMPT
    assert now["cached_device"] == now["cached_host"] == now["cached_storage"] == 0
    assert now["retractions"] > stats["retractions"]
    again = ("resumed_tokens", "recomputed_tokens")
    assert sum(now[name] for name in again) > sum(stats[name] for name in again)


def test_a_full_queue_refuses_newcomers_and_nobody_who_was_taken(server):
    dice = random.Random(2)
    learn(server, dice)
    before = server.stats()
    body = {"model": "sim", "max_tokens": 3 * ANSWER, "ignore_eos": True}
    answers = asked(server, [{**body, "prompt": text(dice)} for _ in range(60)])
    refused = [one for one in answers if one.status_code == 503]
    taken = [one for one in answers if one.status_code == 200]
    assert len(refused) + len(taken) == 60
    assert refused
    assert {one.headers["retry-after"] for one in refused} == {"1"}
    assert {one.json()["error"]["code"] for one in refused} == {"not_now"}
    assert all(one.json()["usage"]["completion_tokens"] == 3 * ANSWER for one in taken)
    after = server.stats()
    assert after["refused"] - before["refused"] == len(refused)
    assert after["finished"] - before["finished"] == len(taken)
    assert after["retractions"] > before["retractions"]
    assert until(server.at_rest)
    assert server.clean()


def test_queue_times_and_skips_are_told_by_key_and_tenant(server):
    dice = random.Random(3)
    body = {"model": "sim", "max_tokens": ANSWER, "ignore_eos": True}
    for tenant, keys in (("ann", "xyxyx"), ("bob", "z")):
        bodies = [{**body, "prompt": [text(dice) for _ in keys], "n": 2, "routing_key": list(keys)}]
        asked(server, bodies, {"x-stepwell-tenant": tenant})
    stats = server.stats()
    rows = stats["by"]["routing_key"]
    assert {key: rows[key]["requests"] for key in "xyz"} == {"x": 6, "y": 4, "z": 2}
    assert {name: row["generated_tokens"] for name, row in stats["by"]["tenant"].items()} == {
        "ann": 10 * ANSWER,
        "bob": 2 * ANSWER,
    }
    assert until(lambda: metrics(server).get(("stepwell_tenant_requests_total", "bob")) == 2)
    for _ in range(20):  # how many run at once is a matter of luck: ask until somebody had to give way
        if (stats := server.stats())["retracted_pages"]:
            break
        asked(server, [{**body, "prompt": [text(dice) for _ in range(20)]}])
    assert until(lambda: metrics(server)["stepwell_retractions_total", "pages"] == stats["retracted_pages"])
    found = metrics(server)
    assert found["stepwell_key_requests_total", "x"] == 6
    assert found["stepwell_key_prompt_tokens_total", "y"] == 4 * PROMPT
    assert found["stepwell_tenant_generated_tokens_total", "ann"] == 10 * ANSWER
    assert found["stepwell_key_waiting", "x"] == found["stepwell_tenant_running", "ann"] == 0
    assert found["stepwell_queue_seconds_count",] == stats["queue_seconds"]["count"]
    assert found["stepwell_queue_seconds_sum",] == pytest.approx(stats["queue_seconds"]["sum"])
    assert found["stepwell_retractions_total", "pages"] == stats["retracted_pages"] > 0
    assert found["stepwell_admissions_total",] == stats["admissions"]
    assert found["stepwell_admission_skips_total", "pages"] == stats["skipped_pages"] > 0
