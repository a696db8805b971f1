"""What can be wrong with the decisions of a schedule policy that are not its order; each has one fault."""

import random
from itertools import cycle

from stepwell import RankedPolicy


class Deciding(RankedPolicy):
    """All decisions taken, and right: urgent ones push out others, two of a tenant run, prompts share alike."""

    max_passes = 16

    def place(self, request, view):
        return None, -request.priority

    def admit(self, request, view):
        return sum(one.tenant == request.tenant for one in view.running) < 3

    def look_past(self, request, misfits, view):
        return misfits < 3

    def preempt(self, request, running, view):
        less = [one for one in running if one.priority < request.priority]
        return sorted(less, key=lambda one: (one.priority, -one.order))

    def victim(self, running, view):
        return max(running, key=lambda one: (one.pages, one.order))

    def chunks(self, prompts, budget, view):
        return [min(prompt.unplanned, budget // len(prompts)) for prompt in prompts]


# --- admit ---


class HoldsBackAll(Deciding):
    """One at a time."""

    def admit(self, request, view):
        return not view.running


class OneOfATenant(Deciding):
    """A tenant that is alone has the machine to itself and runs one at a time on it."""

    def admit(self, request, view):
        return all(one.tenant != request.tenant for one in view.running)


class AdmitsByHalves(Deciding):
    """A number of places, which is no answer."""

    def admit(self, request, view):
        return 3 - len(view.running)


class AdmitsEverySecond(Deciding):
    asked = 0

    def admit(self, request, view):
        self.asked += 1
        return self.asked % 2 == 1


# --- look_past ---


class LooksPastAll(Deciding):
    def look_past(self, request, misfits, view):
        return True


class LooksAgain(Deciding):
    def look_past(self, request, misfits, view):
        return misfits in (1, 3)


class LooksPastNothing(Deciding):
    """Says nothing, too."""

    def look_past(self, request, misfits, view):
        return None


# --- preempt ---


class PreemptsWhoIsProtected(Deciding):
    def preempt(self, request, running, view):
        return super().preempt(request, view.running, view)


class PreemptsTwice(Deciding):
    def preempt(self, request, running, view):
        return super().preempt(request, running, view) * 2


class PreemptsWithoutEnd(Deciding):
    def preempt(self, request, running, view):
        return cycle(super().preempt(request, running, view))


class PreemptsEquals(Deciding):
    def preempt(self, request, running, view):
        return [one for one in running if one.priority <= request.priority]


class PreemptsInACircle(Deciding):
    """No two push each other out, but three do."""

    def preempt(self, request, running, view):
        ring = "tuvw"
        if request.tenant not in ring if request.tenant else True:
            return []
        below = ring[ring.index(request.tenant) - 1]
        return [one for one in running if one.tenant == below]


class PreemptsByWork(Deciding):
    """Those who have generated least give way; whoever has just begun always has."""

    def preempt(self, request, running, view):
        return sorted((one for one in running if one.generated < 20), key=lambda one: one.generated)


class PreemptsTheLatest(Deciding):
    """Sorts those that run, for all to see."""

    def preempt(self, request, running, view):
        running.sort(key=lambda one: -one.order)
        return [one for one in running if one.priority < request.priority]


# --- victim ---


class VictimIsProtected(Deciding):
    def victim(self, running, view):
        return min(view.running, key=lambda one: one.order)


class VictimOfYesterday(Deciding):
    """Whoever was the victim stays it."""

    last = None

    def victim(self, running, view):
        self.last = self.last or super().victim(running, view)
        return self.last


# --- chunks ---


class ForgetsThePromptsThatGetNothing(Deciding):
    def chunks(self, prompts, budget, view):
        return [share for share in super(Deciding, self).chunks(prompts, budget, view) if share]


class GivesEachTheBudget(Deciding):
    def chunks(self, prompts, budget, view):
        return [min(prompt.unplanned, budget) for prompt in prompts]


class GivesMoreThanIsLeft(Deciding):
    def chunks(self, prompts, budget, view):
        return [budget // len(prompts) for _ in prompts]


class TakesBack(Deciding):
    """The last gets what is left, which may be less than nothing."""

    def chunks(self, prompts, budget, view):
        shares = [min(prompt.unplanned, max(16, budget // len(prompts))) for prompt in prompts[:-1]]
        return [*shares, min(prompts[-1].unplanned, budget - sum(shares))]


class GivesShares(Deciding):
    def chunks(self, prompts, budget, view):
        return [min(prompt.unplanned, budget / len(prompts)) for prompt in prompts]


class SaysWho(Deciding):
    """Whether each gets a token."""

    def chunks(self, prompts, budget, view):
        return [at < budget for at, _ in enumerate(prompts)]


class ShortestChunkFirst(Deciding):
    """Whatever is nearest to its end takes all it needs; a long prompt ends when no short ones come."""

    def chunks(self, prompts, budget, view):
        shares = [0] * len(prompts)
        for at in sorted(range(len(prompts)), key=lambda at: prompts[at].unplanned):
            shares[at] = min(prompts[at].unplanned, budget)
            budget -= shares[at]
        return shares


class DicesShares(Deciding):
    def chunks(self, prompts, budget, view):
        return [random.randint(0, min(prompt.unplanned, budget // len(prompts))) for prompt in prompts]
