"""Kernels for Hopper, compiled on any machine: stores of 16 bytes, flags behind them, and few registers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

SENDS = ("send_kernel", "low_send_kernel", "back_kernel", "reduce_kernel")
WAITS = ("plan_kernel", "low_send_kernel", "arrive_kernel", "spread_kernel", "gather_kernel")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """What came of each kernel."""
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    env["TRITON_CACHE_DIR"] = str(tmp_path_factory.mktemp("triton"))
    script = Path(__file__).with_name("compiled.py")
    run = subprocess.run([sys.executable, script], env=env, capture_output=True, text=True, timeout=240, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    return [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]


def test_all_of_them_compile(compiled):
    kernels = {each["kernel"] for each in compiled}
    assert kernels == {*SENDS, *WAITS, "learn_kernel"}
    assert len({each["of"] for each in compiled}) == 4


def test_rows_are_stored_in_pieces_of_16_bytes(compiled):
    for each in compiled:
        if each["kernel"] in (*SENDS, "spread_kernel", "gather_kernel"):
            assert each["wide_stores"] >= 4, each


def test_flags_are_released_and_acquired_at_system_scope(compiled):
    for each in compiled:
        assert each["released"] > 0 or each["kernel"] not in SENDS, each
        assert each["acquired"] > 0 or each["kernel"] not in WAITS, each


def test_registers_leave_room_for_two_programs_a_processor(compiled):
    for each in compiled:
        assert each["registers"] <= 128, each
        assert each["spilt"] <= 64, each
