"""`stepwell run` and `stepwell chat`."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from stepwell.cli import root

SIM = ["--set", "runner.use=sim", "--set", "cache.page_size=4", "--set", "cache.device_pages=64"]


@pytest.fixture
def stepwell():
    def invoke(*args: str, given: str | bytes = "") -> Result:
        return CliRunner().invoke(root, list(args), input=given)

    return invoke


def test_run_prints_the_answer(stepwell) -> None:
    result = stepwell("run", "hello", *SIM, "-n", "12")
    assert result.exit_code == 0, result.output
    assert result.stdout.strip()


def test_run_as_json(stepwell) -> None:
    result = stepwell("run", "-", *SIM, "-n", "7", "--json", "--no-chat", given="from a pipe")
    plain = json.loads(result.stdout)
    assert plain["prompt_tokens"] == 11
    assert 1 <= plain["completion_tokens"] <= 7
    assert plain["cached"] == {"device": 0, "host": 0, "storage": 0}
    assert plain["finish_reason"] in ("length", "stop")


def test_model_names_the_runners_model(stepwell) -> None:
    one = stepwell("run", "hello", *SIM, "--no-chat", "-n", "20")
    other = stepwell("run", "hello", *SIM, "--no-chat", "-n", "20", "--model", "another")
    assert one.stdout != other.stdout


def test_chat_shows_what_came_from_the_cache(stepwell) -> None:
    result = stepwell("chat", *SIM, "-n", "5", given="tell me something\n\nand more\n/flush\nonce more\n/quit\nnever\n")
    assert result.exit_code == 0, result.output
    counts = [line for line in result.stderr.splitlines() if line.startswith("[")]
    assert len(counts) == 3
    assert "none cached" in counts[0] and "cached (" in counts[1] and "none cached" in counts[2]


def test_a_prompt_that_cannot_fit_is_one_sentence(stepwell) -> None:
    result = stepwell("run", "x" * 999, *SIM)
    assert result.exit_code == 2
    assert "Traceback" not in result.output and "256" in result.stderr


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (["--temperature", "nan"], "nan is no temperature"),
        (["--temperature", "inf"], "inf is no temperature"),
        (["--stop", ""], "an empty text ends nothing"),
    ],
)
def test_a_wrong_option_is_said_as_what_it_is(stepwell, given: list[str], sentence: str) -> None:
    result = stepwell("run", "hello", *SIM, *given)
    assert result.exit_code == 2
    assert sentence in result.stderr and "--no-chat" not in result.stderr


def test_bytes_that_are_no_text_are_one_sentence(stepwell) -> None:
    result = stepwell("run", "-", *SIM, given=b"caf\xe9")
    assert result.exit_code == 2
    assert result.stderr == "Error: standard input is not UTF-8 text (byte 3)\n"


def test_a_command_that_chat_does_not_have_is_no_message(stepwell) -> None:
    result = stepwell("chat", *SIM, "-n", "2", given="/flsh\n/quit\n")
    assert result.exit_code == 0
    assert "no such command: /flsh; have /flush" in result.stderr and "prompt tokens" not in result.stderr


def test_a_wrong_setting_is_one_sentence(stepwell) -> None:
    result = stepwell("run", "x", "--set", "runner.use=nosuch")
    assert result.exit_code == 2
    assert "runner.use = 'nosuch' (--set runner.use)" in result.stderr


def test_a_turn_that_does_not_fit_does_not_end_the_conversation(stepwell) -> None:
    result = stepwell("chat", *SIM, "-n", "5", given="x" * 400 + "\nshort\n")
    assert result.exit_code == 0
    lines = [line for line in result.stderr.splitlines() if line.startswith("[")]
    assert lines[0].startswith("[not answered: ") and "prompt tokens" in lines[1]
