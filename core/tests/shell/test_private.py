"""Folders of processes do not outlive them for long, however those end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from stepwell.engine.ranks.start import Meeting
from stepwell.private import PrivateFolder
from stepwell.process import private_address

HOLD = """
import sys
from stepwell.engine.ranks.start import Meeting
from stepwell.process import private_address
with private_address() as address:
    meeting = Meeting()
    print(address.removeprefix("ipc://"), meeting.address.removeprefix("file://"), flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary folders are, here and in children."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def start() -> tuple[subprocess.Popen[str], list[Path]]:
    """A process that has both folders."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=dict(os.environ)
    )
    assert process.stdout is not None
    return process, [Path(name).parent for name in process.stdout.readline().split()]


def end(process: subprocess.Popen[str], how: signal.Signals) -> None:
    process.send_signal(how)
    process.communicate()


def test_what_a_process_left_behind_goes_with_the_next_and_what_others_have_stays(root: Path) -> None:
    """And what is no folder of ours stays, too."""
    (root / "stepwell-notes").mkdir()
    lives, used = start()
    died, left = start()
    end(died, signal.SIGKILL)
    assert all(folder.is_dir() for folder in [*used, *left])
    with private_address() as address:
        mine = Path(address.removeprefix("ipc://")).parent
        assert set(root.iterdir()) == {mine, *used, root / "stepwell-notes"}
        assert mine.stat().st_mode & 0o777 == 0o700
    end(lives, signal.SIGTERM)


def test_who_ends_in_order_leaves_nothing_of_children_that_were_killed(root: Path) -> None:
    folder = PrivateFolder()
    child, left = start()
    end(child, signal.SIGTERM)
    assert all(one.is_dir() for one in left)
    folder.close()
    assert not list(root.iterdir())


def test_ranks_meet_in_a_folder_that_goes_with_them(root: Path) -> None:
    meeting = Meeting()
    assert meeting.address.startswith(f"file://{root}/stepwell-ranks-")
    meeting.close()
    assert not list(root.iterdir())
