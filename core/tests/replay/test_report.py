"""The table, `--ablate` and the page."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from stepwell.cli import root
from stepwell.replay.variants import variants

from .conftest import STORED, replay

SETS = [part for one in STORED for part in ("--set", one)]


@pytest.fixture
def parts(trace: Path) -> dict[str, Any]:
    document = replay(trace, "--ablate", sets=STORED)
    found: dict[str, Any] = document["variants"]
    assert {name: document[name] for name in ("all", "bytes_moved")} == {
        name: found["as configured"][name] for name in ("all", "bytes_moved")
    }
    return found


def test_each_part_off_shows_what_it_brings(parts: dict[str, Any]) -> None:
    assert list(parts) == ["as configured", "no storage", "write_through_selective", "no host tier", "no cache"]
    whole = parts["as configured"]
    for name, one in parts.items():
        hit = one["all"]["hit_tokens"]
        assert one["finished"] == 160, name
        assert one["all"]["input_tokens"] == whole["all"]["input_tokens"]
        assert one["computed_tokens"] == one["all"]["input_tokens"] - sum(hit.values()), name
    assert parts["no storage"]["all"]["hit_tokens"]["storage"] == 0
    assert parts["no storage"]["bytes_moved"]["store"] == parts["no storage"]["bytes_moved"]["fetch"] == 0
    assert parts["no host tier"]["all"]["hit_tokens"]["host"] == 0
    assert set(parts["no host tier"]["bytes_moved"].values()) == {0}
    assert set(parts["no cache"]["all"]["hit_tokens"].values()) == {0}
    assert parts["write_through_selective"]["bytes_moved"]["save"] < whole["bytes_moved"]["save"]
    shares = [parts[name]["all"]["hit_share"] for name in ("as configured", "no storage", "no host tier", "no cache")]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > shares[1] > shares[2] > 0
    spent = [parts[name]["gpu_seconds"] for name in ("as configured", "no host tier", "no cache")]
    assert spent == sorted(spent)


def test_a_config_has_the_variants_of_its_own_parts() -> None:
    def names(**changed: Any) -> list[str]:
        known: dict[str, Any] = {"host": False, "storage": False, "write": "write_through", "schedule": "fcfs"}
        return [variant.name for variant in variants(**(known | changed))]

    assert names() == ["as configured", "no cache"]
    assert names(schedule="lpm") == ["as configured", "fcfs", "no cache"]
    assert names(host=True, write="write_back") == ["as configured", "write_through", "no host tier", "no cache"]


class Page(HTMLParser):
    """What a page is made of."""

    VOID = {"meta"}

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: dict[str, str] = {}
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name: value or "" for name, value in attrs}
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name: value or "" for name, value in attrs}

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_stands_alone_and_shows_the_table_and_the_plots(trace: Path, tmp_path: Path) -> None:
    odd = trace.rename(tmp_path / "a<b>&.jsonl")
    ran = CliRunner().invoke(root, ["replay", str(odd), "--ablate", "--html", "page.html", "--price", "2", *SETS])
    assert ran.exit_code == 0, ran.output
    assert "wrote page.html" in ran.output
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert not re.search(r"https?:|src=|href=|@import|url\(", text)
    page = Page()
    page.feed(text)
    page.close()
    assert page.open == []
    assert page.tags.count("svg") == 5 + 4  # one a name of the legend, and strips, two plots and the tiers
    assert "script" not in page.tags
    assert page.tags.count("polyline") == 2 * 5
    assert "Replay of a<b>&.jsonl" in page.text
    for words in ("no host tier", "money a million tokens", "GB stored, fetched", "latency of the whole answer"):
        assert words in page.text
    assert not re.search(r"\bnan\b|\binf\b", text)


def test_a_page_without_time_has_no_plots_of_time(trace: Path, tmp_path: Path) -> None:
    replay(trace, "--instant", "--html", "page.html", sets=["cache.device_pages=60"])
    page = Page()
    page.feed((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert page.tags.count("svg") == 1


def test_the_table_says_the_same_as_the_document(trace: Path) -> None:
    ran = CliRunner().invoke(root, ["replay", str(trace), *SETS], env={"COLUMNS": "120"})
    assert ran.exit_code == 0, ran.output
    document = replay(trace, sets=STORED)
    for tier in ("device", "host", "storage"):
        assert f"{document['all']['hit_tokens'][tier]:,}" in ran.output
    assert f"{document['gpu_seconds']:,.0f}" in ran.output
    assert "money" not in ran.output
