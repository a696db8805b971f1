"""The main job, shown: several conversations over one system prompt, a restart in between, every answer checked.

Starts the real server, asks each turn twice (through the cache, then with a salt of its own, which nothing can hit),
compares the greedy texts, restarts the server and goes on. Prints a table and writes build/demo.json.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[2]
CONFIG = Path(__file__).with_name("demo.toml")
OUT = ROOT / "build" / "demo.json"
PAGES = ROOT / "build" / "demo" / "pages"
TIE = 1e-4
READY_S = 180
ANSWER_TOKENS = 40

SYSTEM = " ".join(Path(__file__).with_name("system.txt").read_text().split())

CONVERSATIONS = {
    "loans": [
        "How long may I keep a novel?",
        "And what happens if I bring it back four days late?",
        "Could my daughter, who is nine, borrow it instead?",
        "Thank you. Please sum up what I have to remember.",
    ],
    "visit": [
        "When can I come to read on a Saturday?",
        "I want to print a page with a colour picture. What does it cost?",
        "Is there something for children during the week?",
        "Which of these days would you pick for a first visit, and why?",
    ],
    "groups": [
        "Is there a club for people who like to write?",
        "Can my book group of six meet in the library?",
        "For how long may we stay?",
        "Please write me a one line reminder for my friends.",
    ],
}
RESTART_AFTER = 3
"""Turns of each conversation before the server is restarted."""


@dataclass
class Answer:
    """What one request brought."""

    text: str
    prompt_tokens: int
    cached: dict[str, int]
    ttft_s: float
    margins: list[float]
    """Gap between the two best logits at each token, where logprobs were asked for."""
    pieces: list[str]


@dataclass
class Turn:
    """One line of build/demo.json."""

    conversation: str
    turn: int
    prompt_tokens: int
    cached: dict[str, int]
    ttft_s: float
    ttft_cold_s: float
    equal: bool
    text: str


def free_port() -> int:
    """A loopback port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def server(log: Path, config: Path = CONFIG, env: Mapping[str, str] | None = None) -> Iterator[httpx.Client]:
    """The real server, until the block ends; then a graceful stop."""
    port = free_port()
    command = [sys.executable, "-m", "stepwell", "serve", "--config", str(config), "--port", str(port)]
    with log.open("ab") as out:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, env={**os.environ, **(env or {})}
        )
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120) as client:
                wait_ready(client, process, log)
                yield client
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def wait_ready(client: httpx.Client, process: subprocess.Popen[bytes], log: Path) -> None:
    """Return when the server can answer; end the demonstration with the server's own words where it cannot."""
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            sys.exit(f"the server ended with status {process.returncode}:\n{log.read_text()[-2000:]}")
        try:
            if client.get("/health/ready").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    sys.exit(f"the server was not ready after {READY_S} s; its log is {log}")


def ask(client: httpx.Client, messages: list[dict[str, str]], **extra: object) -> Answer:
    """Stream one greedy answer and time its first token."""
    body = {
        "model": "smollm2",
        "messages": messages,
        "temperature": 0,
        "max_tokens": ANSWER_TOKENS,
        "stream": True,
        "stream_options": {"include_usage": True},
        **extra,
    }
    text, pieces, margins, first, usage = "", [], [], 0.0, {}
    begin = time.perf_counter()
    with client.stream("POST", "/v1/chat/completions", json=body) as response:
        if response.status_code != 200:
            sys.exit(f"the server answered {response.status_code}: {response.read().decode()}")
        for line in response.iter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            chunk = json.loads(line[6:])
            usage = chunk.get("usage") or usage
            for choice in chunk["choices"]:
                piece = choice["delta"].get("content") or ""
                first = first or (time.perf_counter() - begin if piece else 0.0)
                text += piece
                for entry in (choice.get("logprobs") or {}).get("content") or []:
                    top = sorted((t["logprob"] for t in entry["top_logprobs"]), reverse=True)
                    pieces.append(entry["token"])
                    margins.append(top[0] - top[1] if len(top) > 1 else 1.0)
    tiers = usage["prompt_tokens_details"]["stepwell"]
    cached = {tier: tiers[tier] for tier in ("device", "host", "storage")}
    return Answer(text, usage["prompt_tokens"], cached, first, margins, pieces)


def same(cached: Answer, cold: Answer) -> bool:
    """Equal texts; or the first difference is at a token where the two best logits are a tie in float32."""
    if cached.text == cold.text:
        return True
    at = next((i for i, pair in enumerate(zip(cached.pieces, cold.pieces, strict=False)) if pair[0] != pair[1]), None)
    return at is not None and cold.margins[at] <= TIE


def turns(client: httpx.Client, histories: dict[str, list[dict[str, str]]], which: range) -> Iterator[Turn]:
    """Hold these turns of every conversation, the conversations taking turns."""
    logprobs = {"logprobs": True, "top_logprobs": 2}
    for number in which:
        for name, history in histories.items():
            history.append({"role": "user", "content": CONVERSATIONS[name][number]})
            warm = ask(client, history, **logprobs)
            cold = ask(client, history, **logprobs, cache_salt=uuid.uuid4().hex, cache_store=False)
            history.append({"role": "assistant", "content": warm.text})
            yield Turn(
                name, number, warm.prompt_tokens, warm.cached, round(warm.ttft_s, 4), round(cold.ttft_s, 4),
                same(warm, cold), warm.text,
            )  # fmt: skip


def show(console: Console, results: list[Turn], restarted_before: int) -> None:
    """The table of all turns."""
    table = Table(title="Each turn, through the cache and without it")
    for column in ("talk", "turn", "prompt", "device", "host", "storage", "TTFT", "cold", "equal"):
        table.add_column(column, justify="left" if column == "talk" else "right", no_wrap=True)
    for at, turn in enumerate(results):
        if at == restarted_before:
            table.add_section()
        tiers = [str(turn.cached[tier]) for tier in ("device", "host", "storage")]
        times = [f"{turn.ttft_s * 1e3:.0f} ms", f"{turn.ttft_cold_s * 1e3:.0f} ms"]
        table.add_row(turn.conversation, str(turn.turn), str(turn.prompt_tokens), *tiers, *times, str(turn.equal))
    console.print(table)


def verdict(results: list[Turn], restarted_before: int) -> list[str]:
    """What the demonstration failed to show, in sentences; nothing where it showed all."""
    failures = [f"{t.conversation} turn {t.turn}: text differs from cache-off" for t in results if not t.equal]
    for tier in ("device", "host", "storage"):
        if not any(turn.cached[tier] for turn in results):
            failures.append(f"no turn had a hit from {tier}")
    if not any(turn.cached["storage"] for turn in results[restarted_before:]):
        failures.append("no hit from storage after the restart")
    return failures


def main() -> int:
    """Run it all; 0 only where everything was shown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", action="store_true", help="keep the pages of an earlier run")
    options = parser.parse_args()
    console = Console()
    if not options.keep:
        shutil.rmtree(PAGES, ignore_errors=True)
    PAGES.parent.mkdir(parents=True, exist_ok=True)
    log = PAGES.parent / "server.log"
    log.unlink(missing_ok=True)

    subprocess.check_call([sys.executable, "-m", "stepwell", "fetch", "smollm2"], cwd=ROOT)
    histories = {name: [{"role": "system", "content": SYSTEM}] for name in CONVERSATIONS}
    results: list[Turn] = []
    last = len(next(iter(CONVERSATIONS.values())))
    for part in (range(RESTART_AFTER), range(RESTART_AFTER, last)):
        with server(log) as client, console.status("the server answers"):
            for turn in turns(client, histories, part):
                console.print(f"[dim]{turn.conversation} {turn.turn}: {turn.text.strip()[:100]}[/dim]", highlight=False)
                results.append(turn)
    restarted_before = RESTART_AFTER * len(CONVERSATIONS)

    show(console, results, restarted_before)
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps({"turns": [asdict(t) for t in results], "restarted_before": restarted_before}, indent=1))
    console.print(f"wrote {OUT.relative_to(ROOT)}; the server's log is {log.relative_to(ROOT)}")
    failures = verdict(results, restarted_before)
    for failure in failures:
        console.print(f"[red]{failure}[/red]")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
