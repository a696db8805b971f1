"""A rank that somebody else started: over TCP on this machine, known by a secret, with host memory of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

import stepwell
from stepwell.api import RequestFailed
from stepwell.builtin.sim import SimConfig, answer
from stepwell.coerce import Secret
from stepwell.config import Chosen, Launched, launched
from stepwell.engine.ranks.door import Door, Joined, alike, check_alike, enter
from stepwell.errors import ConfigError, PluginError
from stepwell.offers import Offer
from stepwell.settings import RankSettings
from stepwell.sources import Origin
from stepwell.types import Sampling

CHOICE = Chosen("runner", Offer("sim", SimConfig, SimConfig), SimConfig(), Origin("a test"))
TEXT = "Once upon a time, in a cache of three tiers"


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def sets(port: int, **more: object) -> list[str]:
    settings: dict[str, object] = {
        "cache.page_size": 4,
        "cache.device_pages": 24,
        "cache.host_pages": 64,
        "write.use": "write_through",
        "runner.use": "sim",
        "runner.heads": 2,
        "runner.eos_every": 0,
        "ranks.tp": 2,
        "ranks.launcher": "external",
        "ranks.secret": "abracadabra",
        "ranks.port": port,
        "ranks.start_s": 20,
        **more,
    }
    return [f"{name}={value}" for name, value in settings.items()]


@pytest.fixture
def remote(port: int) -> Iterator[subprocess.Popen[bytes]]:
    argv = [sys.executable, "-m", "stepwell", "rank"]
    for text in sets(port):
        argv += ["--set", text]
    env = {**os.environ, "RANK": "1", "MASTER_ADDR": "127.0.0.1"}
    process = subprocess.Popen(argv, env=env, stderr=subprocess.PIPE)
    yield process
    process.kill()
    process.wait()


def test_a_rank_of_another_launcher_answers_alike_and_its_end_is_told(
    port: int, remote: subprocess.Popen[bytes]
) -> None:
    with stepwell.Engine(sets=sets(port)) as engine:
        for number in (0, 1, 2, 0, 1):
            text = f"{number} {TEXT}"
            prompt = np.frombuffer(text.encode(), np.uint8).astype(np.int32).tobytes()
            tokens = engine.generate(text, max_tokens=12).tokens
            assert tokens == answer(SimConfig(eos_every=0, heads=2), prompt, Sampling(max_tokens=12))
        assert engine.generate(f"2 {TEXT}", max_tokens=12).cached.total >= 40
        os.kill(remote.pid, signal.SIGKILL)
        with pytest.raises((RequestFailed, stepwell.StepwellError), match=r"rank 1 \(pid \d+ at 127.0.0.1\) was lost"):
            while True:
                engine.generate(TEXT, max_tokens=12)


def test_who_does_not_know_the_secret_is_sent_away(port: int) -> None:
    ranks = RankSettings(tp=2, port=port, secret=Secret("abracadabra"), start_s=1.5)
    nobody = Launched(None, None, None, "", None)
    with closing(Door(CHOICE, ranks, nobody)) as door:
        assert door.meet == f"tcp://127.0.0.1:{port - 1}"
        failed: list[BaseException] = []

        def wait() -> None:
            try:
                door.join([])
            except PluginError as error:
                failed.append(error)

        waiting = threading.Thread(target=wait)
        waiting.start()
        other = RankSettings(tp=2, port=port, secret=Secret("hocus pocus"), start_s=5)
        with pytest.raises(ConfigError, match=r"did not let rank 1 in: is ranks.secret the same"):
            enter("127.0.0.1", port, 1, 7, other)
        waiting.join()
        assert "rank 0, 1 did not come within ranks.start_s = 1.5 s" in str(failed[0])
    with pytest.raises(ConfigError, match=r"needs ranks.secret"):
        stepwell.Engine(sets=sets(port, **{"ranks.secret": ""}))


def test_what_a_launcher_says_is_read() -> None:
    env = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
    assert launched(env) == Launched(3, 1, 4, "10.0.0.1", 29500)
    assert launched({}) == Launched(None, None, None, "", None)
    with pytest.raises(ConfigError, match=r"\$RANK is 'x', which is no number"):
        launched({"RANK": "x"})


def test_a_rank_with_another_runner_than_the_engines_says_which_setting_differs() -> None:
    told = Joined(2, "tcp://127.0.0.1:1", alike(CHOICE))
    check_alike(CHOICE, told)
    other = replace(CHOICE, settings=SimConfig(heads=4))
    with pytest.raises(ConfigError, match=r"runner.heads is '4' here and '\d+' at the engine: give both one config"):
        check_alike(other, told)
