"""Health comes from the serving loop's own signs of life, and from nothing else."""

from __future__ import annotations

import threading
from contextlib import suppress

import httpx

from stepwell_server.settings import ServerSettings


def _ask(served, route):
    response = httpx.get(f"{served.url}{route}")
    return response.status_code, response.json()


def test_a_serving_engine_is_healthy(served):
    for route in ("/health", "/health/ready", "/health/live"):
        status, body = _ask(served, route)
        assert (status, body["status"]) == (200, "ok")


def test_before_the_engine_is_there_it_is_starting(served):
    engine, served.front.engine = served.front.engine, None
    served.front.starting = "the model is being loaded"
    for route in ("/health", "/health/ready", "/health/live"):
        assert _ask(served, route) == (503, {"status": "starting", "reason": "the model is being loaded"})
    asked = httpx.post(f"{served.url}/v1/completions", json={"model": "well", "prompt": "a"})
    assert asked.status_code == 503
    assert asked.json()["error"]["message"] == "the model is being loaded"
    assert asked.headers["retry-after"] == "2"
    served.front.engine = engine
    assert _ask(served, "/health")[0] == 200


def test_b137_a_dead_engine_is_unhealthy_with_the_reason(served):
    served.do(lambda: served.engine.die("the engine's process ended"))
    for route in ("/health", "/health/ready", "/health/live"):
        assert _ask(served, route) == (503, {"status": "down", "reason": "the engine's process ended"})


def test_b137_traffic_does_not_refresh_a_stalled_loop(served):
    served.engine.beating = False
    answer = served.openai().completions.create(model="well", prompt="a")
    assert answer.choices[0].text
    status, body = _ask(served, "/health")
    assert status == 503
    assert "serving loop was not heard for 1.5 s" in body["reason"]


def test_b138_no_output_for_long_is_healthy_while_the_loop_turns(start):
    with start(ServerSettings(pulse_s=0.2), step_s=30.0) as served:
        waiting = threading.Thread(target=_give_up_after, args=(served, 0.8))
        waiting.start()
        seen = set()
        while waiting.is_alive():
            seen.add(_ask(served, "/health")[0])
        assert seen == {200}


def _give_up_after(served, seconds):
    with suppress(httpx.ReadTimeout):
        httpx.post(f"{served.url}/v1/completions", json={"model": "well", "prompt": "a"}, timeout=seconds)


def test_draining_is_live_and_not_ready(served):
    served.engine.values["draining"] = 1.0
    assert _ask(served, "/health/live")[0] == 200
    assert _ask(served, "/health/ready")[0] == 503
