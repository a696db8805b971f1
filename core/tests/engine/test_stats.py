"""What is counted: each event once, queue times up to the first admission, names as many and as long as allowed."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest

from stepwell.engine.controls import Controls
from stepwell.engine.stats import CAUSES, Counters
from stepwell.engine.tally import NAME_CHARS, NAMES, OTHER, QUEUE_S, shorten
from stepwell.schedule.job import Job
from stepwell.schedule.request import Request


def job(key: str | None = None, arrival: float = 0.0) -> Job:
    return Job(Request(rid="r", namespace=b"", tokens=bytes(12), routing_key=key), 0, arrival)


def test_queue_time_is_that_of_the_first_admission() -> None:
    counters, waits = Counters(), job(arrival=10.0)
    counters.admitted(waits, 10.3)
    counters.retracted("pages", waits)
    counters.admitted(waits, 99.0)
    told = counters.told().waits
    assert (told.count, told.seconds) == (1, pytest.approx(0.3))
    assert waits.started == 10.3
    assert (counters.admissions, counters.retractions) == (2, 1)


@pytest.mark.parametrize(
    ("waited", "bucket"), [(0.0, 0), (0.001, 0), (0.0011, 1), (0.5, QUEUE_S.index(0.5)), (301.0, len(QUEUE_S))]
)
def test_a_bucket_holds_what_is_no_longer_than_its_bound(waited: float, bucket: int) -> None:
    counters = Counters()
    counters.admitted(job(), waited)
    counts = counters.told().waits.counts
    assert counts[bucket] == sum(counts) == 1
    spelled = counters.told().spelled()["queue_seconds"]
    assert spelled["up_to"][[*map("{:g}".format, QUEUE_S), "inf"][bucket]] == 1


def test_only_who_gave_way_counts_as_retracted() -> None:
    counters = Counters()
    for cause in CAUSES:
        counters.retracted(cause, job())
    values = counters.values()
    assert values["retractions"] == 2
    assert [values[f"retracted_{cause}"] for cause in CAUSES] == [1] * len(CAUSES)
    counters.skipped("claim", job())
    assert counters.values()["skipped_claim"] == 1
    assert all(isinstance(value, int | float) for value in counters.values().values())


def test_names_are_so_many_and_so_long() -> None:
    counters = Counters.counting(["routing_key"])
    keys = [f"key {number}" for number in range(NAMES + 5)]
    for key in [*keys, keys[0], "k" * 600, OTHER]:
        counters.arrived(job(key))
    rows = counters.told().by["routing_key"]
    assert set(rows) == {*keys[:NAMES], OTHER}
    assert rows[OTHER]["requests"] == 5 + 2
    assert rows[keys[0]]["requests"] == 2
    assert len(shorten("k" * 600)) == NAME_CHARS
    assert shorten("\ud800") == "?"


def test_a_name_that_says_other_takes_no_name_away() -> None:
    counters = Counters.counting(["routing_key"])
    for key in [OTHER, *(str(number) for number in range(NAMES))]:
        counters.arrived(job(key))
    assert len(counters.told().by["routing_key"]) == NAMES + 1


def test_nothing_is_counted_by_name_unless_asked() -> None:
    counters = Counters.counting(())
    counters.arrived(job("a"))
    assert counters.told().by == {}


def test_a_fault_has_an_end_and_can_be_written() -> None:
    counters = Counters()
    counters.fault("x" * 10_000 + "\ud800")
    assert len(counters.told().last_fault) == 500
    assert counters.policy_faults == 1


# --- in a brain ------------------------------------------------------------------------------------------------------


def test_counts_by_name_are_those_of_the_whole(world) -> None:  # type: ignore[no-untyped-def]
    """Whatever happens to requests: gauges add up to the brain's own at each turn, and all is empty in the end."""
    dice = random.Random(5)
    w = world(page=4, device=24, reserve=0.0, count_by=("routing_key", "tenant"))
    counters = w.brain.counters
    rids: list[str] = []
    for turn in range(300):
        if turn < 200 and dice.random() < 0.4:
            text = "".join(dice.choices("abcdefgh", k=dice.randrange(1, 40)))
            placed = {"routing_key": dice.choice("xyz"), "tenant": dice.choice("pq"), "priority": dice.randrange(3)}
            rids.append(w.submit(text, max_tokens=dice.randrange(1, 40), **placed))
        if rids and dice.random() < 0.05:
            w.abort(dice.choice(rids))
        w.turn()
        for rows in counters.told().by.values():
            assert sum(row["waiting"] for row in rows.values()) == w.brain.waiting
            assert sum(row["running"] for row in rows.values()) == w.brain.running
    w.run()
    assert counters.retractions > 2
    assert counters.aborted > 0
    assert sum(counters.skips.values()) > 0
    for rows in counters.told().by.values():
        assert sum(row["requests"] for row in rows.values()) == counters.requests - counters.refused
        assert sum(row["admissions"] for row in rows.values()) == counters.admissions
        assert sum(row["retractions"] for row in rows.values()) == counters.retractions
        assert sum(row["skips"] for row in rows.values()) == sum(counters.skips.values())
        assert sum(row["queue_seconds"] for row in rows.values()) == pytest.approx(counters.waited_s)
        assert sum(row["generated_tokens"] for row in rows.values()) == counters.generated_tokens
        assert {row["waiting"] for row in rows.values()} == {row["running"] for row in rows.values()} == {0}
    assert counters.told().waits.count <= counters.requests
    w.clean()


def test_the_first_fault_of_a_policy_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    counters = Counters()
    parts = SimpleNamespace(brain=SimpleNamespace(counters=counters))
    controls = Controls(parts, SimpleNamespace(), SimpleNamespace())  # type: ignore[arg-type]
    assert controls.told().last_fault == ""
    assert not caplog.records
    for what in ("order left somebody out", "victim is not a running request"):
        counters.fault(what)
        assert controls.told().last_fault == what
    assert ["order left somebody out" in record.getMessage() for record in caplog.records] == [True]
