"""`stepwell bench branches`: that its traffic is what it says, and that it tells good policies from bad ones."""

import json

import pytest
from click.testing import CliRunner

from stepwell.abc.retain import RetentionPolicy
from stepwell.bench.branches import FRESH, KINDS, KNOWN, NEW, TURN, Traffic, Work, command, measure
from stepwell.builtin.retain import Tail
from stepwell.errors import ConfigError, PluginError

PAGE = 16


class Forks(Tail):
    """What tail keeps, and where paths part."""

    def along(self, start, end, page, branches):
        return branches


class Nothing(RetentionPolicy):
    def keep(self, length, page, branches):
        return ()


class Everything(Tail):
    def along(self, start, end, page, branches):
        return range(start + page, end + 1, page)


class Beyond(RetentionPolicy):
    def keep(self, length, page, branches):
        return (length + page,)


POLICIES = {"tail": Tail, "forks": Forks, "nothing": Nothing, "everything": Everything, "beyond": Beyond}


@pytest.fixture(scope="module")
def traffic():
    return Traffic.of(sessions=50, turns=3, seed=0)


def outcome(traffic, *names, share=0.03, windows=(128,)):
    work = Work(traffic, PAGE, 2048, share)
    return measure(work, windows, names, lambda name: POLICIES[name]())


def test_sessions_grow_by_turns(traffic):
    grown = {}
    for request in traffic.requests:
        assert request.prompt < request.end <= len(traffic.paths[request.session])
        if request.kind == TURN:
            assert request.prompt > grown[request.session]
        else:
            assert request.session not in grown
        grown[request.session] = request.end
    assert grown == {session: len(path) for session, path in enumerate(traffic.paths)}
    assert len(grown) == 50


def test_branches_leave_where_others_did_or_anywhere():
    traffic = Traffic.of(sessions=600, turns=3, seed=3)
    points, cuts, kinds = set(), [], dict.fromkeys(KINDS, 0)
    for request in traffic.requests:
        kinds[request.kind] += 1
        path, left = traffic.paths[request.session], request.left
        assert (left is not None) == (request.kind in (KNOWN, FRESH))
        if left is not None:
            theirs = traffic.paths[left.session]
            assert path[: left.length] == theirs[: left.length]
            assert path[left.length : left.length + 1] != theirs[left.length : left.length + 1]
            assert request.kind != KNOWN or left in points, "nobody ended or left there"
            points.add(left)
            cuts += [left.length] if request.kind == FRESH else []
        points.add((request.session, request.end))
    assert kinds[NEW] + kinds[KNOWN] + kinds[FRESH] == 600
    assert kinds[NEW] / 600 == pytest.approx(0.5, abs=0.1)
    assert kinds[KNOWN] / (kinds[KNOWN] + kinds[FRESH]) == pytest.approx(0.5, abs=0.1)
    assert sum(cut % PAGE == 0 for cut in cuts) < len(cuts) / 4, "fresh points know nothing of pages"


def test_equal_seeds_give_equal_traffic_and_others_do_not(traffic):
    assert Traffic.of(50, 3, 0) == traffic
    assert Traffic.of(50, 3, 1) != traffic


def test_a_window_pool_as_large_as_the_full_one_loses_nothing_where_all_is_kept(traffic):
    result = outcome(traffic, "everything", share=1.0)
    (row,) = result["rows"]
    assert row["hit_tokens"] == result["full_alone"]["hit_tokens"]
    assert row["all"] == row[KNOWN] == row[FRESH] == row[TURN] == 1.0


def test_what_is_kept_is_what_is_found(traffic):
    result = outcome(traffic, "nothing", "tail", "forks", "everything")
    rows = {row["policy"]: row for row in result["rows"]}
    assert rows["forks"][FRESH] > rows["tail"][FRESH]
    assert rows["tail"][TURN] > max(rows["nothing"][TURN], rows["everything"][TURN])
    assert rows["nothing"]["windows_asked"] == rows["nothing"]["windows_held"] == 0
    assert rows["everything"]["windows_asked"] > rows["forks"]["windows_asked"] > rows["tail"]["windows_asked"]
    for row in rows.values():
        assert 0 <= row["windows_held"] <= row["windows_asked"]
        assert row["hit_tokens"][NEW] == 0


def test_longer_windows_leave_room_for_fewer(traffic):
    near, far = outcome(traffic, "tail", windows=(128, 512), share=0.05)["rows"]
    assert near["windows_held"] > far["windows_held"]


def test_a_policy_that_asks_for_what_is_not_there_is_no_result(traffic):
    with pytest.raises(PluginError, match=r"retain\.use = 'beyond': the retention policy asked for lengths"):
        outcome(traffic, "beyond")


SMALL = ("--sessions", "20", "--chunk", "512", "--share", "0.05", "--policy", "tail")


def test_as_json():
    ran = CliRunner().invoke(command, [*SMALL, "--window", "64", "--seed", "5", "--json"])
    assert ran.exit_code == 0, ran.output
    told = json.loads(ran.output)
    assert told["sessions"] == 20 and told["seed"] == 5 and told["share"] == 0.05
    assert told["pages"]["swa"] == int(told["pages"]["full"] * 0.05)
    assert [(row["window"], row["policy"]) for row in told["rows"]] == [(64, "tail")]
    assert sum(told["requests"].values()) >= 20


def test_as_tables():
    ran = CliRunner().invoke(command, SMALL)
    assert ran.exit_code == 0, ran.output
    assert "Window 128" in ran.output and "Window 1024" in ran.output and "tail" in ran.output


def test_a_window_pool_that_cannot_hold_a_chunk_is_refused():
    ran = CliRunner().invoke(command, ["--sessions", "3", "--policy", "tail"])
    assert isinstance(ran.exception, ConfigError)
    assert "give a larger --share, more --sessions or a smaller --chunk" in str(ran.exception)


@pytest.mark.parametrize("arguments", [("--sessions", "1", "--turns", "1"), ("--seed", "2")])
def test_a_full_pool_that_cannot_hold_a_request_is_refused(arguments):
    few = ("--sessions", "3", "--turns", "1", "--chunk", "512", "--share", "1", "--policy", "tail")
    ran = CliRunner().invoke(command, [*few, *arguments])
    assert isinstance(ran.exception, ConfigError)
    assert "give more --sessions" in str(ran.exception)


def test_more_requests_than_memory_holds_are_refused():
    ran = CliRunner().invoke(command, [*SMALL, "--sessions", "50000", "--turns", "50000"])
    assert isinstance(ran.exception, ConfigError)
    assert "memory would not hold them" in str(ran.exception)


def test_an_unknown_policy_is_refused():
    ran = CliRunner().invoke(command, [*SMALL, "--policy", "no-such"])
    assert isinstance(ran.exception, ConfigError)
    assert "no-such" in str(ran.exception)


def test_settings_of_a_policy_are_judged():
    ran = CliRunner().invoke(command, [*SMALL, "--set", "retain.tokens=5"])
    assert isinstance(ran.exception, ConfigError)
    assert "retain.tokens" in str(ran.exception)
