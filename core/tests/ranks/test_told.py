"""What a launcher says and cannot be is a sentence, and so is what a rank says that none of ours does."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from stepwell.builtin.sim import SimConfig
from stepwell.coerce import Secret
from stepwell.config import Chosen, Launched, launched
from stepwell.engine.ranks.door import Door, enter
from stepwell.engine.ranks.link import Link
from stepwell.engine.ranks.runner import RanksRunner
from stepwell.engine.ranks.start import judge
from stepwell.engine.ranks.told import check_engine, check_rank, door_port, host_of
from stepwell.engine.ranks.wire import Stream, Word
from stepwell.errors import ConfigError, PluginError
from stepwell.offers import Capability, Offer
from stepwell.settings import RankSettings
from stepwell.sources import Origin

OFFER = Offer("sim", SimConfig, SimConfig, provides=frozenset({Capability.RANKS}))
CHOICE = Chosen("runner", OFFER, SimConfig(), Origin("a test"))
TWO = RankSettings(tp=2, launcher="external", secret=Secret("abracadabra"), start_s=1)


def told(rank: int | None = None, world: int | None = None, address: str = "", port: int | None = 29500) -> Launched:
    return Launched(rank, None, world, address, port)


def test_what_fits_is_taken() -> None:
    check_engine(TWO, told())
    check_engine(TWO, told(rank=0, world=2))
    assert check_rank(TWO, told(rank=1, world=2)) == 1
    assert door_port(TWO, told(port=65534)) == 65535
    assert host_of(RankSettings(listen="0.0.0.0"), told(address="10.0.0.1")) == "10.0.0.1"


@pytest.mark.parametrize(
    ("check", "says", "sentence"),
    [
        (check_engine, told(rank=1), r"\$RANK is 1, and an engine is rank 0: start `stepwell rank` for the others"),
        (check_engine, told(rank=0, world=4), r"\$WORLD_SIZE is 4 and ranks.tp = 2: make them the same"),
        (check_rank, told(rank=1, world=4), r"\$WORLD_SIZE is 4 and ranks.tp = 2: make them the same"),
        (check_rank, told(rank=0), r"\$RANK has to say which rank this is, from 1 on"),
        (check_rank, told(rank=99999999999), r"\$RANK is 99999999999, and the last of ranks.tp = 2 ranks is 1"),
        (door_port, told(port=65535), r"\$MASTER_PORT is 65535, after which there is no port: set ranks.port"),
        (door_port, told(port=10**12), r"\$MASTER_PORT is 1000000000000, after which there is no port"),
        (door_port, told(port=None), r"ranks.port is not set, and neither is \$MASTER_PORT"),
    ],
)
def test_what_does_not_is_a_sentence(
    check: Callable[[RankSettings, Launched], object], says: Launched, sentence: str
) -> None:
    with pytest.raises(ConfigError, match=f"^{sentence}"):
        check(TWO, says)


@pytest.mark.parametrize("text", ["-1", "1.5", "9" * 5000])
def test_what_is_no_number_of_a_process_is_a_sentence(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^\$RANK is '.+', which is no number$"):
        launched({"RANK": text})


def test_an_engine_that_listens_everywhere_has_to_be_told_where_it_is() -> None:
    everywhere = RankSettings(tp=2, listen="0.0.0.0", secret=Secret("abracadabra"))
    with pytest.raises(ConfigError, match=r"'0.0.0.0' is every address of a host and none to go to: set \$MASTER_ADDR"):
        Door(CHOICE, everywhere, told())
    with pytest.raises(ConfigError, match=r"set \$MASTER_ADDR"):
        host_of(everywhere, told(rank=1))


@pytest.mark.parametrize("host", ["x" * 5000, "a..b"])
def test_what_is_no_name_of_a_host_is_not_tried_again(host: str) -> None:
    with pytest.raises(ConfigError, match=r"\$MASTER_ADDR is '.{1,70}', which is no name of a host") as failure:
        enter(host, 29501, 1, 7, RankSettings(tp=2, secret=Secret("abracadabra"), start_s=30))
    assert len(str(failure.value)) < 200


def test_a_secret_of_no_text_is_refused() -> None:
    secret = Secret(b"\xff\xfe".decode(errors="surrogateescape"))
    with pytest.raises(ConfigError, match=r"^ranks.secret has bytes in it that are no text in UTF-8") as failure:
        judge(CHOICE, RankSettings(tp=2, launcher="external", secret=secret))
    assert secret not in str(failure.value)


def test_the_command_says_so_and_ends_with_2() -> None:
    argv = [sys.executable, "-m", "stepwell", "rank", "--set", "runner.use=sim", "--set", "ranks.launcher=external"]
    argv += ["--set", "ranks.tp=2"]
    env = {**os.environ, "RANK": "1", "MASTER_PORT": "65535", "STEPWELL_RANKS__SECRET": "abracadabra"}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "$MASTER_PORT is 65535" in done.stderr


def test_a_rank_that_is_made_of_nonsense_is_named() -> None:
    ends = [socket.socketpair() for _ in range(2)]

    def start() -> list[Link]:
        now = time.monotonic()
        return [Link(at, Stream(mine), None, f"pid {at} at b", now) for at, (mine, _) in enumerate(ends)]

    for _, theirs in ends:
        Stream(theirs).say(Word.MADE, b"\x93nonsense")
    with pytest.raises(PluginError, match=r"^rank 0 \(pid 0 at b\) answered nonsense before it was ready: "):
        RanksRunner(start, timeout_s=1, start_s=5)
