"""The sim runner that writes down what it was told and what it told, and may keep its saves to itself for a while."""

import threading
import time
from pathlib import Path

from wild_runner import WildRunner

HELD_S = 0.02
"""For so long, several steps, the last rank does not say that a save has ended."""


class ToldRunner(WildRunner):
    def __init__(self, folder, fault, config, context):
        super().__init__(fault, config, context)
        self.file = Path(folder) / f"rank{context.rank}"
        self.holds = fault.late and context.rank == context.world - 1
        self.since = {}

    def launch(self, plan):
        copies = [(copy.id, copy.group, copy.device, copy.host) for copy in (*plan.loads, *plan.saves)]
        rows = [(row.slot, row.start, row.count) for row in plan.rows]
        self.note("plan", plan.number, rows, [opened.slot for opened in plan.opens], copies)
        return super().launch(plan)

    def saved(self):
        now = time.monotonic()
        for id in self.kept.keys() - self.since.keys():
            self.since[id] = now
            threading.Timer(HELD_S, self.wake).start()
        ready = [id for id in self.kept if not self.holds or now >= self.since[id] + HELD_S]
        told = {id: self.kept.pop(id) for id in ready}
        for id in told:
            self.note("saved", id, time.monotonic())
        return told

    def note(self, *what):
        with self.file.open("a") as file:
            print(*what, sep="\t", file=file)


def make(folder, fault, config, context):
    return ToldRunner(folder, fault, config, context)
