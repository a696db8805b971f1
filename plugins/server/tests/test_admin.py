"""Keys, administration and metrics."""

from __future__ import annotations

import httpx
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from stepwell.coerce import Secret
from stepwell.engine.stats import Counters
from stepwell.schedule.job import Job
from stepwell.schedule.request import Request
from stepwell.types import Cached
from stepwell_server.settings import ServerSettings

ASK = {"model": "well", "messages": [{"role": "user", "content": "hi"}]}


def _metrics(served):
    text = httpx.get(f"{served.url}/metrics").text
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.fixture(scope="module")
def locked(start):
    with start(ServerSettings(api_key=Secret("sesame"), admin_key=Secret("root"))) as served:
        yield served


@pytest.mark.parametrize("route", ["/v1/models", "/v1/chat/completions", "/v1/nothing"])
def test_an_api_key_guards_everything_under_v1(locked, route):
    for headers in ({}, {"authorization": "sesame"}, {"authorization": "Bearer x"}, {"authorization": "Basic sesame"}):
        response = httpx.get(f"{locked.url}{route}", headers=headers)
        assert response.status_code == 401
        assert response.json()["error"]["code"] == "invalid_api_key"
        assert response.headers["www-authenticate"] == "Bearer"


def test_the_key_opens(locked):
    assert locked.openai(api_key="sesame").chat.completions.create(**ASK).choices
    with pytest.raises(openai.AuthenticationError):
        locked.openai(api_key="Sesame").chat.completions.create(**ASK)
    with pytest.raises(openai.AuthenticationError):
        locked.openai(api_key="root").chat.completions.create(**ASK)


def test_health_and_metrics_need_no_key(locked):
    assert httpx.get(f"{locked.url}/health").status_code == 200
    assert httpx.get(f"{locked.url}/metrics").status_code == 200


def test_admin_asks_for_its_own_key(locked):
    assert httpx.get(f"{locked.url}/admin/stats").status_code == 401
    assert httpx.get(f"{locked.url}/admin/stats", headers={"authorization": "Bearer sesame"}).status_code == 401
    key = {"authorization": "Bearer root"}
    assert httpx.get(f"{locked.url}/admin/stats", headers=key).json() == {"verb": "stats"}
    assert httpx.post(f"{locked.url}/admin/flush", headers=key).json() == {"verb": "flush"}
    assert httpx.post(f"{locked.url}/admin/audit", headers=key).json() == {"verb": "audit"}
    assert httpx.get(f"{locked.url}/admin/flush", headers=key).status_code == 405
    assert locked.engine.controls == ["stats", "flush", "audit"]


def test_without_an_admin_key_there_is_no_admin(served):
    for route in ("/admin/stats", "/admin/flush", "/admin/"):
        assert httpx.get(f"{served.url}{route}").status_code == 404


def test_keys_are_never_printed():
    assert "sesame" not in repr(ServerSettings(api_key=Secret("sesame")))
    with pytest.raises(ValueError, match="admin_key"):
        ServerSettings(api_key=Secret("same"), admin_key=Secret("same"))


def test_a_served_name_is_the_only_name(start):
    with start(ServerSettings(served_model_name="mine")) as served:
        client = served.openai()
        assert client.chat.completions.create(**{**ASK, "model": "mine"}).model == "mine"
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.create(**ASK)


def test_metrics_count_what_happened(start, script):
    values = {
        "bytes_loaded": 5.0,
        "bytes_saved": 6.0,
        "device_pages_free.full": 7.0,
        "storage_failed_late": 2.0,
        "retractions": 3.0,
        "retracted_pages": 2.0,
        "retracted_preempted": 1.0,
        "retracted_step": 4.0,
        "skipped_policy": 9.0,
        "admissions": 11.0,
        "policy_faults": 5.0,
        "something_new.part": 3.0,
        "something_whole": 4.0,
    }
    with start(script=script("abc"), cached=Cached(device=4, host=2), values=values) as served:
        client = served.openai()
        client.chat.completions.create(**ASK)
        list(client.chat.completions.create(**ASK, stream=True))
        with pytest.raises(openai.BadRequestError):
            client.chat.completions.create(**ASK, temperature=9)
        httpx.get(f"{served.url}/nowhere")
        found = _metrics(served)
    prompt = len("<user>hi\n<assistant>")
    assert found["stepwell_prompt_tokens_total", ("source", "device")] == 8
    assert found["stepwell_prompt_tokens_total", ("source", "host")] == 4
    assert found["stepwell_prompt_tokens_total", ("source", "computed")] == 2 * (prompt - 6)
    assert found["stepwell_completion_tokens_total",] == 8
    assert found["stepwell_answers_total", ("finish", "stop")] == 2
    assert found["stepwell_requests_total", ("route", "chat/completions"), ("status", "200")] == 2
    assert found["stepwell_requests_total", ("route", "chat/completions"), ("status", "400")] == 1
    assert found["stepwell_errors_total", ("kind", "invalid_request_error")] == 2
    assert found["stepwell_ttft_seconds_count",] == 2
    assert found["stepwell_latency_seconds_count",] == 2
    assert found["stepwell_engine_up",] == 1
    assert found["stepwell_moved_bytes_total", ("direction", "load")] == 5
    assert found["stepwell_moved_bytes_total", ("direction", "save")] == 6
    assert found["stepwell_pages", ("group", "full"), ("state", "free"), ("tier", "device")] == 7
    assert found["stepwell_storage_failures_total", ("reason", "late")] == 2
    assert found["stepwell_retractions_total", ("cause", "pages")] == 2
    assert found["stepwell_retractions_total", ("cause", "preempted")] == 1
    assert found["stepwell_retractions_total", ("cause", "step")] == 4
    assert found["stepwell_retractions_total", ("cause", "load")] == 0
    assert found["stepwell_admission_skips_total", ("reason", "policy")] == 9
    assert found["stepwell_admission_skips_total", ("reason", "claim")] == 0
    assert found["stepwell_admissions_total",] == 11
    assert found["stepwell_policy_faults_total",] == 5
    assert not [name for name, *_ in found if "retracted" in name or "skipped_" in name]
    assert found["stepwell_engine_something_new", ("part", "part")] == 3
    assert found["stepwell_engine_something_whole",] == 4
    assert not [name for name, *_ in found if name.endswith("_created")]


def test_metrics_say_that_the_engine_is_down(served):
    served.engine.beating = False
    assert _metrics(served)["stepwell_engine_up",] == 0


def test_metrics_have_queue_times_and_series_by_key_and_tenant_whatever_the_names(start):
    """The engine's own counters, told by a pulse: names of clients come back as they were, none can add a line."""
    counters = Counters.counting(("routing_key", "tenant"))
    names = ["plain", 'a"} 1\nstepwell_fake{b="\\', "Brunnen\u00fc", "", "lone \ud800"]
    waits = [0.0, 0.003, 0.3, 7.0, 1000.0]
    for order, (name, waited) in enumerate(zip(names, waits, strict=True)):
        job = Job(Request(rid=str(order), namespace=b"", tokens=bytes(40), routing_key=name, tenant="all"), order, 5.0)
        counters.arrived(job)
        counters.admitted(job, 5.0 + waited)
        counters.retracted("pages", job)
        counters.skipped("policy", job)
        counters.ended(job, 3)
    with start(told=counters.told()) as served:
        found = _metrics(served)
    assert found["stepwell_queue_seconds_count",] == 5
    assert found["stepwell_queue_seconds_sum",] == pytest.approx(sum(waits))
    assert found["stepwell_queue_seconds_bucket", ("le", "0.001")] == 1
    assert found["stepwell_queue_seconds_bucket", ("le", "0.5")] == 3
    assert found["stepwell_queue_seconds_bucket", ("le", "300.0")] == 4
    assert found["stepwell_queue_seconds_bucket", ("le", "+Inf")] == 5
    shown = [*names[:-1], "lone ?"]
    assert {labels[0][1] for name, *labels in found if name == "stepwell_key_requests_total"} == set(shown)
    for name in shown:
        assert found["stepwell_key_generated_tokens_total", ("routing_key", name)] == 3
        assert found["stepwell_key_waiting", ("routing_key", name)] == 0
    assert found["stepwell_tenant_requests_total", ("tenant", "all")] == 5
    assert found["stepwell_tenant_prompt_tokens_total", ("tenant", "all")] == 50
    assert found["stepwell_tenant_queue_seconds_total", ("tenant", "all")] == pytest.approx(sum(waits))
    assert found["stepwell_tenant_retractions_total", ("tenant", "all")] == 5
    assert found["stepwell_tenant_skips_total", ("tenant", "all")] == 5
    assert found["stepwell_tenant_running", ("tenant", "all")] == 0
    assert not [name for name, *_ in found if "fake" in name]
