"""The engine in a process of its own: killed, stopped, refused, restarted, on a store that outlives it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest

from stepwell.builtin.sim import SimConfig, answer
from stepwell.cache.keys import namespace
from stepwell.engine.client import Conflict, EngineClient
from stepwell.engine.messages import Output
from stepwell.engine.supervise import ChildFailed, Supervisor
from stepwell.errors import ConfigError
from stepwell.plugins import load
from stepwell.process import engine_child, private_address
from stepwell.schedule.request import Request
from stepwell.types import Sampling

SIM = {"runner.use": "sim", "cache.page_size": 4, "cache.device_pages": 64, "runner.pace": 0.01}


class Deployed:
    """A supervisor with an engine, and how to reach it."""

    def __init__(self, address: str, settings: Mapping[str, object] = SIM, *, restart: bool = True) -> None:
        self.address = address
        child = engine_child(address, extra=settings, restart=restart)
        self.supervisor = Supervisor([child], start_s=60, grace_s=20)

    @property
    def pid(self) -> int:
        return self.supervisor.pid("engine")

    async def client(self) -> EngineClient:
        return await EngineClient.connect(self.address, plugins=load(only=None).digest(), timeout_s=30)


@pytest.fixture
def address() -> Iterator[str]:
    with private_address() as made:
        yield made


@pytest.fixture
def deployed(address: str) -> Iterator[Deployed]:
    made = Deployed(address)
    made.supervisor.start()
    yield made
    made.supervisor.stop()


def request(client: EngineClient, rid: str, max_tokens: int) -> Request:
    tokens = np.arange(20, dtype=np.int32).tobytes()
    return Request(
        rid=rid,
        namespace=namespace(client.hello.namespace),
        tokens=tokens,
        sampling=Sampling(max_tokens=max_tokens, ignore_eos=True),
    )


async def collect(client: EngineClient, rid: str, max_tokens: int = 5) -> tuple[tuple[int, ...], Output]:
    outputs = [output async for output in await client.submit(request(client, rid, max_tokens))]
    return tuple(token for output in outputs for token in output.tokens), outputs[-1]


def right(max_tokens: int = 5) -> tuple[int, ...]:
    sampling = Sampling(max_tokens=max_tokens, ignore_eos=True)
    return answer(SimConfig(), np.arange(20, dtype=np.int32).tobytes(), sampling)


def test_the_socket_is_private(address: str) -> None:
    folder = Path(address.removeprefix("ipc://")).parent
    assert folder.stat().st_mode & 0o777 == 0o700


def test_answers_come_through(deployed: Deployed) -> None:
    async def check() -> None:
        client = await deployed.client()
        tokens, last = await collect(client, "a")
        assert tokens == right() and last.finish == "length" and last.prompt_tokens == 20
        _, again = await collect(client, "b")
        assert again.cached.device == 16
        assert (await client.control("audit")) == {"clean": True}
        await client.close()

    asyncio.run(check())


def test_storage_comes_and_goes_over_the_wire(address: str) -> None:
    deployed = Deployed(address, {**SIM, "cache.host_pages": 64, "write.use": "write_through"})
    deployed.supervisor.start()

    async def check() -> None:
        client, other = await deployed.client(), await deployed.client()
        assert not client.hello.storage
        told = await client.control("storage.attach", given={"use": "memory"})
        assert (told["use"], told["attached"]) == ("memory", True)
        async with asyncio.timeout(10):
            while not (client.hello.storage and other.hello.storage):
                await asyncio.sleep(0.02)
        late = await deployed.client()
        assert late.hello.storage, "who joins later is told so at once"
        assert (await collect(client, "a"))[0] == right()
        with pytest.raises(Conflict, match="is attached"):
            await other.control("storage.attach", given={"use": "memory"})
        for wrong, sentence in (({"gibb": 1}, "did you mean gib"), ({"gib": 10**30}, "cannot be sent")):
            with pytest.raises(ConfigError, match=sentence):
                await client.control("storage.attach", given={"use": "memory", "replace": True, **wrong})
        assert (await client.control("storage.detach"))["closed"]
        async with asyncio.timeout(10):
            while client.hello.storage:
                await asyncio.sleep(0.02)
        for one in (client, other, late):
            await one.close()

    try:
        asyncio.run(check())
    finally:
        deployed.supervisor.stop()


def test_b136_two_front_ends_over_the_limit_hear_of_every_request(address: str) -> None:
    deployed = Deployed(address, {**SIM, "engine.max_running": 1, "engine.max_waiting": 4})
    deployed.supervisor.start()

    async def check() -> None:
        fronts = [await deployed.client(), await deployed.client()]
        asked = [collect(front, f"{at}-{number}") for number in range(20) for at, front in enumerate(fronts)]
        ends = [(tokens, last) for tokens, last in await asyncio.wait_for(asyncio.gather(*asked), 30)]
        answered = [tokens for tokens, last in ends if last.finish == "length"]
        refused = [last for _, last in ends if last.finish == "refused"]
        assert len(answered) + len(refused) == 40
        assert len(answered) >= 4 and refused
        assert set(answered) == {right()}
        assert all(last.later and "no more than 4 may" in (last.error or "") for last in refused)
        stats = await fronts[0].control("stats")
        assert (stats["refused"], stats["waiting"], stats["running"]) == (len(refused), 0, 0)
        assert await fronts[1].control("audit") == {"clean": True}
        for front in fronts:
            await front.close()

    try:
        asyncio.run(check())
    finally:
        deployed.supervisor.stop()


def test_kill_9_ends_requests_at_once_and_the_supervisor_restarts(deployed: Deployed) -> None:
    async def check() -> None:
        client = await deployed.client()
        running = [asyncio.create_task(collect(client, f"r{number}", 40)) for number in range(8)]
        await asyncio.sleep(0.2)
        first = deployed.pid
        os.kill(first, signal.SIGKILL)
        begin = time.monotonic()
        ends = [last for _, last in await asyncio.wait_for(asyncio.gather(*running), 10)]
        assert time.monotonic() - begin < 2
        assert {(last.finish, last.error) for last in ends} == {("error", "the engine's process ended")}
        assert not client.alive()
        refused = (await collect(client, "early"))[1]
        assert refused.finish == "error"
        deadline = time.monotonic() + 20
        while not deployed.supervisor.restarted:
            assert time.monotonic() < deadline
            deployed.supervisor.watch(0.05)
            await asyncio.sleep(0)
        assert deployed.supervisor.restarted == 1 and deployed.pid != first
        while not client.alive():
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        assert (await collect(client, "after"))[0] == right()
        await client.close()

    asyncio.run(check())


def test_a_stopped_engine_is_noticed_and_used_again_when_it_goes_on(address: str) -> None:
    deployed = Deployed(address)
    deployed.supervisor.start()

    async def check() -> None:
        client = await EngineClient.connect(address, plugins=load(only=None).digest(), timeout_s=30, silent_s=1.0)
        running = asyncio.create_task(collect(client, "a", 40))
        await asyncio.sleep(0.2)
        os.kill(deployed.pid, signal.SIGSTOP)
        _, last = await asyncio.wait_for(running, 10)
        assert last.finish == "error" and "silent" in (last.error or "")
        assert not client.alive()
        os.kill(deployed.pid, signal.SIGCONT)
        deadline = time.monotonic() + 10
        while not client.alive():
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        assert (await collect(client, "b"))[0] == right()
        stats = await client.control("stats")
        assert stats["running"] == 0, "what the front end had given up was aborted"
        await client.close()

    try:
        asyncio.run(check())
    finally:
        deployed.supervisor.stop()


def test_sigterm_lets_requests_finish(deployed: Deployed) -> None:
    async def check() -> None:
        client = await deployed.client()
        running = asyncio.create_task(collect(client, "a", 40))
        await asyncio.sleep(0.15)
        os.kill(deployed.pid, signal.SIGTERM)
        tokens, last = await asyncio.wait_for(running, 20)
        assert last.finish == "length" and tokens == right(40)
        await asyncio.sleep(0.5)
        assert not client.alive()
        await client.close()

    asyncio.run(check())


def test_a_front_end_that_is_killed_frees_everything(deployed: Deployed) -> None:
    program = (
        "import asyncio, sys\n"
        "from stepwell.engine.client import EngineClient\n"
        "from stepwell.plugins import load\n"
        "from stepwell.schedule.request import Request\n"
        "from stepwell.types import Sampling\n"
        "async def go():\n"
        "    client = await EngineClient.connect(sys.argv[1], plugins=load(only=None).digest())\n"
        "    tokens = b'\\1\\0\\0\\0' * 20\n"
        "    sampling = Sampling(max_tokens=200, ignore_eos=True)\n"
        "    outputs = await client.submit(Request(rid='x', namespace=b'n' * 32, tokens=tokens, sampling=sampling))\n"
        "    await anext(outputs)\n"
        "    print('running', flush=True)\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(go())\n"
    )
    front = subprocess.Popen([sys.executable, "-c", program, deployed.address], stdout=subprocess.PIPE)
    assert front.stdout is not None and front.stdout.readline() == b"running\n"
    front.kill()
    front.wait()
    front.stdout.close()

    async def check() -> None:
        client = await deployed.client()
        deadline = time.monotonic() + 10
        while (stats := await client.control("stats"))["running"]:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        assert stats["aborted"] == 1 and stats["device_pages_held.full"] == 0
        await client.close()

    asyncio.run(check())


def test_a_config_that_cannot_run_is_one_sentence_and_no_restart(address: str) -> None:
    with pytest.raises(ConfigError, match=r"^runner\.use = 'nosuch' \(argument\): nothing installed offers it"):
        Deployed(address, {**SIM, "runner.use": "nosuch"}).supervisor.start()
    with pytest.raises(ConfigError, match=r"cache\.device_pagess \(argument\).*did you mean device_pages\?"):
        Deployed(address, {**SIM, "cache.device_pagess": 3}).supervisor.start()


def test_an_address_that_cannot_be_bound_is_said() -> None:
    with pytest.raises(ChildFailed, match=r"^engine: \w+: .*"):
        Deployed("ipc:///no/such/folder/engine").supervisor.start()


def test_a_start_by_hand_prints_its_reason_and_exits_with_2(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "stepwell.process", "--address", f"ipc://{tmp_path}/e", "--set", "runner.use=nosuch"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "runner.use = 'nosuch' (--set runner.use)" in done.stderr
    assert "Traceback" not in done.stderr


def test_nothing_is_left_behind(address: str) -> None:
    """The memory of the host tier has no name, the socket's folder goes, and the process has ended."""
    before = set(Path("/dev/shm").iterdir())
    deployed = Deployed(address, {**SIM, "cache.host_pages": 64, "storage.use": "memory"})
    deployed.supervisor.start()
    pid = deployed.pid
    os.kill(pid, signal.SIGKILL)
    deployed.supervisor.stop()
    assert set(Path("/dev/shm").iterdir()) == before
    assert not Path(f"/proc/{pid}").exists()


def test_an_engine_of_several_says_which_it_is(address: str) -> None:
    """They write to one terminal."""
    told = json.dumps({**SIM, "ranks.dp": 2, "ranks.group": 1})
    argv = [sys.executable, "-m", "stepwell.process", "--address", address, "--extra-json", told]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        process.kill()
    assert "group 1: stepwell.process: model" in line
