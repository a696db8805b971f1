"""Two groups behind one front end: requests go where their prefix is, and one may die."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from server_process import Server, children, real, refused, until

from stepwell.assemble import Assembly
from stepwell.config import Config
from stepwell_server.launch import check_groups


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with real(tmp_path_factory.mktemp("groups"), "ranks.dp=2", "cache.page_size=4") as running:
        assert until(lambda: running.get("/health").json() == {"status": "ok", "running": 0, "waiting": 0})
        yield running


def ask(server: Server, prompt: str) -> tuple[str, int]:
    """The answer, and how many tokens of the prompt were cached."""
    done = server.openai().completions.create(model="sim", prompt=prompt, max_tokens=8)
    assert done.usage is not None and done.usage.prompt_tokens_details is not None
    return done.choices[0].text, done.usage.prompt_tokens_details.cached_tokens or 0


def sessions(server: Server) -> list[int]:
    """Of each group, how many requests it has finished."""
    groups = server.get("/admin/stats").json()["groups"]
    return [int(groups[name].get("finished", -1)) for name in sorted(groups)]


def engine(server: Server, group: int) -> int:
    """Process id of a group's engine."""
    return next(
        child
        for child in children(server.process.pid)
        if f"engine-{group}".encode() in Path(f"/proc/{child}/cmdline").read_bytes()
    )


def test_sessions_are_spread_and_stay_where_they_are_cached(server: Server) -> None:
    begins = [f"{letter * 60} tell me more" for letter in "abcd"]
    first = [ask(server, begin)[0] for begin in begins]
    assert min(sessions(server)) > 0, "both groups have some"
    before = sessions(server)
    for begin, said in zip(begins, first, strict=True):
        assert until(lambda begin=begin: ask(server, begin)[1] >= len(begin) - 8, 5), "it is found again"
        assert ask(server, begin)[0] == said
    assert min(sessions(server)) > min(before)


def test_one_that_is_killed_comes_back_while_the_other_serves(server: Server) -> None:
    os.kill(engine(server, 1), signal.SIGKILL)
    assert until(lambda: "1" in server.get("/health").json().get("down", {}))
    assert server.get("/health").status_code == 200
    for letter in "efgh":
        assert len(ask(server, letter * 40)[0]) > 0
    assert 'stepwell_group_up{group="0"} 1.0' in server.get("/metrics").text
    assert until(lambda: "down" not in server.get("/health").json(), 20)
    assert until(lambda: 'stepwell_group_up{group="1"} 1.0' in server.get("/metrics").text)
    ask(server, "i" * 40)


def test_groups_cannot_use_a_storage_that_is_not_shared(tmp_path: Path) -> None:
    sets = ("runner.use=sim", "ranks.dp=2", "cache.host_pages=64", "storage.use=memory")
    status, words = refused(tmp_path, *sets)
    assert status == 2
    assert "'memory' is not shared, and there are 2 groups" in words
    assert "Traceback" not in words


def test_a_route_of_one_group_is_noted_once() -> None:
    config = Config.load(None, {"HOME": "/nonexistent"}, ["runner.use=sim", "route.use=sticky"])
    check_groups(config, Assembly(config, config.load_plugins()).resolved)
    (note,) = [note for note in config.notes if "[route]" in note]
    assert note.endswith("is ignored: there is one engine here to choose from (ranks.dp = 1)")
