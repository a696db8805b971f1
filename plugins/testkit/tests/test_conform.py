"""A kit run on an offer, with no test file."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from stepwell import ConfigError

SUBJECTS = Path(__file__).parent / "subjects"

SCRIPT = """
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, {subjects!r})
from kit_subjects import balance, eviction, pipes, retention, schedule, storage, write
from stepwell import Capability, NoConfig, Offer
from stepwell_testkit import conform

@dataclass(frozen=True)
class Folder:
    root: Path

def simple(cls):
    return Offer("subject", lambda config, context: cls())

FILES = Capability.PERSISTENT, Capability.SHARED, Capability.DELETES, Capability.LISTS
def files(cls, *provides):
    return Offer("subject", lambda config, context: cls(config.root / "pages"), Folder, provides=frozenset(provides))

ranks = Offer("subject", lambda config, context: pipes.Files(context))
def run(number, *subject):
    folder = Path({folder!r}) / str(number)
    folder.mkdir()
    return conform(*subject, folder)

sys.exit(max(run(number, *subject) for number, subject in enumerate([{calls}])))
"""


@dataclass
class Run:
    status: int
    text: str


@pytest.fixture
def run(tmp_path):
    def run(*calls):
        """In a process of its own, as `stepwell doctor` is."""
        each = ", ".join(f"({call})" for call in calls)
        source = SCRIPT.format(subjects=str(SUBJECTS), calls=each, folder=str(tmp_path))
        done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=120, cwd=tmp_path)
        return Run(done.returncode, done.stdout + done.stderr)

    return run


def test_right_offers_conform(run):
    """One of each kind, in one process."""
    done = run(
        "'write', simple(write.Selective), NoConfig()",
        "'evict', simple(eviction.Lru), NoConfig()",
        "'retain', simple(retention.Ends), NoConfig()",
        "'schedule', simple(schedule.Longest), NoConfig()",
        "'dispatch', ranks, NoConfig()",
        "'balance', simple(balance.Rounds), NoConfig()",
        "'storage', simple(storage.Plain), NoConfig()",
        "'storage', files(storage.Files, *FILES), Folder",
    )
    assert done.status == 0, done.text
    assert done.text.count(" passed") == 8
    assert "warning" not in done.text


def test_wrong_offers_do_not_and_claims_are_tested(run):
    done = run(
        "'write', simple(write.PercentReserve), NoConfig()",
        "'storage', files(storage.ForgetsAtTheEnd, Capability.PERSISTENT), Folder",
    )
    assert done.status == 1
    assert "test_its_reserve_is_a_share" in done.text
    assert "test_persistent_holds_over_the_end_of_a_process" in done.text


def test_a_kind_without_a_kit_is_refused(tmp_path):
    from stepwell_testkit import conform

    with pytest.raises(ConfigError, match="no conformance kit for 'sink'; there are kits for storage, evict"):
        conform("sink", None, None, tmp_path)
