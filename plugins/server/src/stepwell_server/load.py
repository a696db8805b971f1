"""A load test: many clients stream chats that share prefixes, and some leave in the middle."""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections import Counter
from dataclasses import dataclass, field, replace

import msgspec
from rich.console import Console

from stepwell.errors import ConfigError
from stepwell_server.bench.events import Stream, refusal
from stepwell_server.bench.http import Address, Broken, HttpClient, retry_after
from stepwell_server.bench.samples import Sample
from stepwell_server.load_report import Found, spread

WORDS = ("well", "water", "stone", "step", "deep", "cool", "light", "shade", "bucket", "rope", "rain", "river", "wall")
SAMPLE_S = 5.0
REST_S = 30.0
"""How long the server may take to come to rest at the end."""


class Left(Broken):
    """The client does not want the rest."""


class Load(msgspec.Struct, frozen=True):
    """What to do."""

    url: str
    clients: int
    seconds: float
    abort_share: float
    prefixes: int
    prefix_words: int
    words: int
    max_tokens: int
    patience: float
    seed: int
    model: str | None = None
    api_key: str | None = None
    admin_key: str | None = None


@dataclass
class Tally:
    """What the clients have seen so far."""

    completed: int = 0
    aborted: int = 0
    tokens: int = 0
    prompt: int = 0
    cached: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    ttft: list[float] = field(default_factory=list)
    latency: list[float] = field(default_factory=list)


async def run(load: Load, console: Console) -> Found:
    """Put the load on, then look whether the server comes to rest."""
    try:
        model = load.model or await _model(load)
        tally, memory = Tally(), [await _memory(load, 0.0)]
    except Broken as error:
        raise ConfigError(f"{load.url}: no server that could be put under load: {error}") from None
    begin = time.monotonic()
    until = begin + load.seconds
    http = HttpClient(Address.of(load.url), load.api_key)
    clients = [asyncio.create_task(_client(load, http, model, i, until, tally)) for i in range(load.clients)]
    with console.status("under load") as status:
        while any(not client.done() for client in clients):
            await asyncio.wait(clients, timeout=SAMPLE_S)
            now = time.monotonic() - begin
            memory.append(await _memory(load, now))
            status.update(
                f"{now:.0f} s: {tally.completed} answers, {tally.aborted} broken off, {tally.errors.total()} errors"
            )
    http.close()
    spent = time.monotonic() - begin
    rest = await _rest(load)
    memory.append(await _memory(load, time.monotonic() - begin))
    return Found(
        clients=load.clients,
        seconds=round(spent, 2),
        completed=tally.completed,
        aborted=tally.aborted,
        errors=dict(tally.errors),
        tokens=tally.tokens,
        tokens_per_s=round(tally.tokens / spent, 1),
        cached_share=round(tally.cached / max(1, tally.prompt), 4),
        ttft_s=spread(tally.ttft),
        latency_s=spread(tally.latency),
        memory=memory,
        rest=rest,
        audit=await _audit(load),
    )


async def _client(load: Load, http: HttpClient, model: str, number: int, until: float, tally: Tally) -> None:
    dice = random.Random(f"{load.seed}/{number}")
    while time.monotonic() < until:
        patience = dice.randrange(load.max_tokens) if dice.random() < load.abort_share else None
        try:
            async with asyncio.timeout(load.patience):
                await _ask(http, _body(load, model, dice), patience, tally)
        except (Broken, TimeoutError) as error:
            tally.errors[str(error) or f"not finished within {load.patience:g} s"] += 1
            await asyncio.sleep(0.5)


def _body(load: Load, model: str, dice: random.Random) -> bytes:
    prefix = random.Random(f"{load.seed}/prefix/{dice.randrange(load.prefixes)}")
    system = " ".join(prefix.choices(WORDS, k=load.prefix_words))
    question = " ".join(dice.choices(WORDS, k=dice.randint(1, load.words)))
    return msgspec.json.encode(
        {
            "model": model,
            "messages": [{"role": "system", "content": system}, {"role": "user", "content": question}],
            "max_tokens": load.max_tokens,
            "temperature": dice.choice((0, 1)),
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    )


async def _ask(http: HttpClient, body: bytes, patience: int | None, tally: Tally) -> None:
    """One streamed answer; broken off after `patience` arrivals. Raises Broken."""
    begin = time.perf_counter()
    sample = Sample(begin, begin)
    stream = Stream(sample)

    def take(data: bytes, at: float) -> bool:
        over = stream.take(data, at)
        if patience is not None and len(sample.arrivals) > patience and not over:
            raise Left
        return over

    try:
        answer = await http.ask("POST", "/chat/completions", body, take)
    except Left:
        tally.aborted += 1
        return
    if not answer.streams:
        raise Broken(refusal(answer.status, bytes(answer.body), retry_after(answer.headers)))
    stream.end(answer.at)
    tally.completed += 1
    tally.tokens += sample.output
    tally.prompt += sample.prompt or 0
    tally.cached += sample.cached or 0
    tally.ttft.append(sample.ttft)
    tally.latency.append(sample.latency)


# --- the server, looked at -------------------------------------------------------------------------------------------


async def get(load: Load, path: str, key: str | None, method: str = "GET") -> bytes:
    """The body of a request beside the load. Raises Broken."""
    http = HttpClient(replace(Address.of(load.url), prefix=""), key)
    try:
        answer = await http.ask(method, path)
    finally:
        http.close()
    if answer.status != 200:
        raise Broken(f"{path}: {refusal(answer.status, bytes(answer.body), 0.0)}")
    return bytes(answer.body)


async def _model(load: Load) -> str:
    listed = msgspec.json.decode(await get(load, "/v1/models", load.api_key))
    return str(listed["data"][0]["id"])


async def metrics(load: Load) -> dict[str, float]:
    """Samples of /metrics by name and labels, as they are written there."""
    text = (await get(load, "/metrics", None)).decode()
    return {
        name: float(value) for name, _, value in (line.rpartition(" ") for line in text.splitlines() if line[:1] != "#")
    }


async def _memory(load: Load, at: float) -> dict[str, float]:
    found = {"t": round(at, 1)}
    for name, value in (await metrics(load)).items():
        if process := re.fullmatch(r'stepwell_resident_bytes\{process="(\w+)"\}', name):
            found[process[1]] = round(value / 2**20, 1)
    return found


async def _rest(load: Load) -> dict[str, float]:
    """Requests and device pages once nothing runs any more, or after `REST_S`."""
    deadline = time.monotonic() + REST_S
    while True:
        await asyncio.sleep(1.0)  # two signs of life of the engine
        found = await metrics(load)
        rest = {name: found.get(f"stepwell_{name}", 0.0) for name in ("running", "waiting", "front_waiting")}
        for state in ("total", "free", "tree_only", "limbo", "held"):
            pattern = re.compile(rf'stepwell_pages\{{.*state="{state}".*tier="device".*\}}')
            rest[f"pages_{state}"] = sum(value for name, value in found.items() if pattern.fullmatch(name))
        if not any(rest[name] for name in ("running", "waiting", "pages_held", "pages_limbo")):
            return rest
        if time.monotonic() > deadline:
            return rest


async def _audit(load: Load) -> str:
    if load.admin_key is None:
        return "not asked for"
    try:
        await get(load, "/admin/audit", load.admin_key, "POST")
    except Broken as error:
        return str(error)
    return "clean"
