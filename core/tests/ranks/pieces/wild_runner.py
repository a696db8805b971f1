"""The sim runner as one of several ranks, one of which goes wrong in a way that a test chooses."""

import os
import random
import signal
import time
from dataclasses import dataclass, replace

from stepwell.builtin.sim import SimRunner
from stepwell.errors import ConfigError


@dataclass(frozen=True)
class Fault:
    """What happens on `rank` (None: on each) at step `at`, counted from 1."""

    what: str = ""
    at: int = 3
    rank: int | None = 1
    late: bool = False
    """Saves go on behind their steps."""


class WildRunner(SimRunner):
    def __init__(self, fault, config, context):
        super().__init__(config, context)
        mine = fault.rank in (None, context.rank)
        self.what, self.at = fault.what if mine else "", fault.at
        self.late_saves = fault.late
        self.random = random.Random(context.rank)
        self.launched, self.kept, self.rank = 0, {}, context.rank
        if self.what == "make":
            raise ConfigError("runner.model = 'gone': there is no such model")
        if self.what == "die at once":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault.what == "stop at once":
            os.kill(os.getpid(), signal.SIGSTOP) if mine else time.sleep(600)  # as those who wait for it

    def values(self):
        return {"told_by_rank": float(self.rank)}

    def launch(self, plan):
        self.launched += 1
        if self.what == "delays":
            time.sleep(self.random.random() * 0.004)
        now = self.launched == self.at
        if now and self.what == "raise":
            raise RuntimeError("the device is on fire")
        if now and self.what in ("die", "stop"):
            os.kill(os.getpid(), signal.SIGKILL if self.what == "die" else signal.SIGSTOP)
        step = super().launch(plan)
        return WildStep(self, step, self.what if now else "")

    def saved(self):
        if self.what == "keep":
            return {}
        ended, self.kept = self.kept, {}
        if ended and self.random.random() < 0.5:  # some later than others
            first = min(ended)
            self.kept[first] = ended.pop(first)
            self.wake()
        return ended

    def _fails_load(self):
        self.loads += 1
        return self.what == "copies" and self.loads % 2 == 0

    def _fails_save(self):
        self.saves += 1
        return self.what == "copies" and self.saves % 3 == 0


class WildStep:
    def __init__(self, runner, step, what):
        self.runner, self.step, self.what = runner, step, what

    def poll(self):
        result = self.step.poll()
        if result is None or self.what == "hang":
            return None
        if self.runner.late_saves:
            saves = {save.id for save in self.step.plan.saves}
            self.runner.kept.update({id: pages for id, pages in result.copies.items() if id in saves})
            result = replace(result, copies={id: it for id, it in result.copies.items() if id not in saves})
        match self.what:
            case "tokens":
                return replace(result, tokens=tuple(tuple(token + 1 for token in row) for row in result.tokens))
            case "number":
                return replace(result, number=result.number + 1)
            case "error":
                return replace(result, error="its memory is full")
        return result


def make(fault, config, context):
    return WildRunner(fault, config, context)
