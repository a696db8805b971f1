"""A child process for the tests of the supervisor: does what its first argument says."""

import argparse
import os
import signal
import sys
import time

from stepwell.engine.supervise import Lifeline
from stepwell.errors import ConfigError

parser = argparse.ArgumentParser()
parser.add_argument("what")
parser.add_argument("--log", default="")
parser.add_argument("--again", action="store_true")
parser.add_argument("--ready-fd", type=int, default=-1)
parser.add_argument("--parent", type=int, default=0)
options = parser.parse_args()


def note(text: str) -> None:
    if options.log:
        with open(options.log, "a") as file:  # noqa: PTH123 - the quickest start counts
            file.write(f"{text} {os.getpid()}\n")


def leave(number: int, frame: object) -> None:
    note("ended")
    sys.exit(0)


lifeline = Lifeline(options.ready_fd, options.parent)
signal.signal(signal.SIGTERM, signal.SIG_IGN if options.what == "stubborn" else leave)
note("again" if options.again else "started")
match options.what:
    case "config":
        sys.exit(lifeline.failed(ConfigError("runner.use = 'x' (site.toml:3): nothing offers it")))
    case "fault":
        sys.exit(lifeline.failed(RuntimeError("the device is on fire")))
    case "mute":
        sys.exit(3)
    case "slow":
        time.sleep(30)
    case "slow again" if options.again:
        time.sleep(30)
    case "once":
        lifeline.ready()
        time.sleep(0.2)
        sys.exit(5)
lifeline.ready()
while True:
    time.sleep(0.5)
