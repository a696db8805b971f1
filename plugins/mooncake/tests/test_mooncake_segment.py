"""`stepwell mooncake segment` lends memory that outlives the engines which use it."""

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from click.testing import CliRunner

from stepwell.cli import root
from stepwell_mooncake.store import MooncakeStorage
from stepwell_testkit.bench import Bench
from stepwell_testkit.server import Server, free_port


def test_pages_in_lent_memory_outlive_their_writer(
    masters: Callable[..., Server], opened: Callable[..., MooncakeStorage], tmp_path: Path
) -> None:
    master = masters()
    command = [sys.executable, "-m", "stepwell", "mooncake", "segment", "--gib", "0.0625"]
    with subprocess.Popen(
        [*command, "--master", f"127.0.0.1:{master.port}"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        assert b"lending 0.0625 GiB" in process.stdout.readline()
        writer = Bench(opened(master), 4096, 4, "salt")
        writer.put(range(4))
        writer.storage.close()
        Bench(opened(master), 4096, 4, "salt").gets(range(4))
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) == 0


def test_mistakes_are_one_sentence() -> None:
    def said(*words: str) -> str:
        done = CliRunner().invoke(root, ["mooncake", "segment", "--gib", "0.02", *words])
        assert done.exit_code == 2, done.output
        return done.output.strip().splitlines()[-1]

    assert said("--master", "nowhere") == "Error: --master: 'nowhere' is no address; write it as host:port"
    assert "storage.master: " in said("--master", f"127.0.0.1:{free_port()}")
