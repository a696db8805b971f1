"""/admin/storage over a real engine: attached, detached and cleared while requests go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from stepwell.assemble import Assembly
from stepwell.coerce import Secret
from stepwell.config import Config
from stepwell.engine.local import LocalClient, LocalEngine
from stepwell.plugins import load
from stepwell_server.app import make_app
from stepwell_server.settings import ServerSettings
from stepwell_server.state import Front

KEY = {"authorization": "Bearer root"}
SIM = {
    "runner.use": "sim",
    "cache.page_size": 4,
    "cache.device_pages": 64,
    "cache.host_pages": 128,
    "write.use": "write_through",
    "prefetch.use": "wait_complete",
    "prefetch.threshold": 4,
}


class Admin:
    """An HTTP client and its engine."""

    def __init__(self, http: httpx.AsyncClient, engine: LocalEngine) -> None:
        self.http, self.engine = http, engine

    async def answer(self, prompt: str) -> dict[str, int]:
        body = {"model": "sim", "prompt": prompt, "max_tokens": 4, "ignore_eos": True}
        response = await self.http.post("/v1/completions", json=body)
        assert response.status_code == 200, response.text
        details = response.json()["usage"]["prompt_tokens_details"]
        return {name: count for name, count in details.items() if count}

    async def storage(self) -> dict[str, object]:
        response = await self.http.get("/admin/storage", headers=KEY)
        assert response.status_code == 200
        return dict(response.json())

    async def until(self, name: str, count: float) -> None:
        async with asyncio.timeout(10):
            while (await self.storage())["counters"].get(name, 0) < count:  # type: ignore[attr-defined]
                await asyncio.sleep(0.01)


@asynccontextmanager
async def serving(settings: Mapping[str, object] = SIM, key: str | None = "root") -> AsyncIterator[Admin]:
    assembly = Assembly(Config.load(None, {"HOME": "/nonexistent", "WORD": "hush"}, extra=settings), load())
    engine = LocalEngine(assembly.parts)
    front = Front(ServerSettings(admin_key=None if key is None else Secret(key)), assembly.codec(), LocalClient(engine))
    transport = httpx.ASGITransport(app=make_app(front))
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://well") as http:
            yield Admin(http, engine)
    finally:
        engine.close()
        front.executor.shutdown()


def run(test: Callable[[Admin], Awaitable[None]], **options: object) -> None:
    async def whole() -> None:
        async with serving(**options) as admin:  # type: ignore[arg-type]
            await test(admin)

    asyncio.run(asyncio.wait_for(whole(), 60))


def test_pages_go_to_a_folder_and_come_back(tmp_path: Path) -> None:
    pytest.importorskip("stepwell_file")
    prompt = "a well in a garden, forty characters long"

    async def test(admin: Admin) -> None:
        await admin.answer(prompt)
        table = {"use": "file", "path": str(tmp_path / "pages"), "gib": 0.25}
        response = await admin.http.put("/admin/storage", json=table, headers=KEY)
        assert response.status_code == 200, response.text
        told = response.json()
        assert (told["attached"], told["use"], told["health"]["reading"]) == (True, "file", "closed")
        assert told["settings"]["path"] == str(tmp_path / "pages")
        assert "persistent" in told["capabilities"]
        await admin.until("pages_written", 10)
        response = await admin.http.delete("/admin/storage", headers=KEY)
        assert response.json() == {"detached": "file", "late_calls": 0, "closed": True}
        assert (await admin.storage())["attached"] is False
        await asyncio.to_thread(admin.engine.control, "flush")
        response = await admin.http.post("/admin/storage", json=table, headers=KEY)
        assert response.status_code == 200, response.text
        await admin.answer(prompt)
        assert (await admin.storage())["counters"]["pages_read"] >= 10  # type: ignore[index]
        text = (await admin.http.get("/metrics")).text
        assert "stepwell_engine_storage_pages_read" in text

    run(test)


def test_clear_answers_a_count_and_leaves_nothing() -> None:
    async def test(admin: Admin) -> None:
        assert (await admin.http.put("/admin/storage", json={"use": "memory"}, headers=KEY)).status_code == 200
        await admin.answer("x" * 41)
        await admin.until("pages_written", 11)
        response = await admin.http.post("/admin/storage/clear", headers=KEY)
        assert response.json() == {"cleared": 11}
        assert (await admin.http.post("/admin/storage/clear", headers=KEY)).json() == {"cleared": 0}

    run(test)


@pytest.mark.parametrize(
    ("body", "status", "sentence"),
    [
        (
            {"use": "memory", "gip": 1.0, "replace": True},
            400,
            "gip (argument): no such setting; did you mean gib?",
        ),
        ({"use": "nowhere", "replace": True}, 400, "storage.use = 'nowhere' (argument): nothing installed offers it"),
        ({"use": "memory", "gib": {"env": "NOT_THERE"}, "replace": True}, 400, "the variable $NOT_THERE is not set"),
        ({"use": "memory", "gib": -1.0, "replace": True}, 400, "storage.gib (argument): -1.0 is not a size above 0"),
        ({"use": "memory", "replace": 1}, 400, "replace: 1 is neither true nor false"),
        ({"replace": True}, 400, "storage.use is required and not set"),
        ([], 400, "the body is no JSON object"),
        ({"use": "memory"}, 409, "storage 'memory' is attached; detach it first, or attach with replace = true"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(body: object, status: int, sentence: str) -> None:
    async def test(admin: Admin) -> None:
        response = await admin.http.put("/admin/storage", json=body, headers=KEY)
        assert response.status_code == status, response.text
        assert sentence in response.json()["error"]["message"]
        assert (await admin.storage())["attached"] is True

    run(test, settings={**SIM, "storage.use": "memory"})


def test_nothing_is_attached_nothing_can_go() -> None:
    async def test(admin: Admin) -> None:
        for response in (
            await admin.http.delete("/admin/storage", headers=KEY),
            await admin.http.post("/admin/storage/clear", headers=KEY),
        ):
            assert (response.status_code, response.json()["error"]["code"]) == (409, "conflict")
        assert (await admin.http.patch("/admin/storage", headers=KEY)).status_code == 405
        deep = b"[" * 50_000
        response = await admin.http.put("/admin/storage", content=deep, headers=KEY)
        assert response.status_code == 400

    run(test)


def test_it_takes_the_admin_key() -> None:
    async def locked(admin: Admin) -> None:
        for method, path in (("GET", ""), ("PUT", ""), ("POST", ""), ("DELETE", ""), ("POST", "/clear")):
            response = await admin.http.request(method, f"/admin/storage{path}", json={"use": "memory"})
            assert response.status_code == 401
        assert (await admin.storage())["attached"] is False

    async def absent(admin: Admin) -> None:
        assert (await admin.http.get("/admin/storage", headers=KEY)).status_code == 404

    run(locked)
    run(absent, key=None)


def test_secrets_are_not_told(tmp_path: Path) -> None:
    async def test(admin: Admin) -> None:
        told = await admin.storage()
        assert told["settings"] == {"gib": 1.0}
        body = {"use": "memory", "gib": {"env": "WORD"}, "replace": True}
        response = await admin.http.put("/admin/storage", json=body, headers=KEY)
        assert response.status_code == 400
        assert "hush" not in response.text

    run(test, settings={**SIM, "storage.use": "memory", "storage.gib": 1.0})


def test_others_are_answered_meanwhile(tmp_path: Path) -> None:
    async def test(admin: Admin) -> None:
        answers = [asyncio.create_task(admin.answer(f"{n} " * 9)) for n in range(12)]
        for _ in range(4):
            put = admin.http.put("/admin/storage", json={"use": "memory", "replace": True}, headers=KEY)
            assert (await put).status_code == 200
        assert (await admin.http.delete("/admin/storage", headers=KEY)).status_code == 200
        await asyncio.gather(*answers)
        assert (await admin.http.post("/admin/audit", headers=KEY)).json() == {"clean": True}

    run(test)
