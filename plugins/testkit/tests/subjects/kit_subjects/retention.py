"""Right retention policies, and what can be wrong with one."""

from itertools import count

from stepwell import RetentionPolicy


class Ends(RetentionPolicy):
    """The end, a page below, and every branch."""

    def keep(self, length, page, branches):
        end = length // page * page
        return [at for at in (*branches, end - page, end) if at > 0]

    def along(self, start, end, page, branches):
        return list(branches)

    def prompted(self, length, page):
        return [at for at in ((length - 1) // page * page,) if at > 0]


class Nothing(RetentionPolicy):
    """As right: nothing has to stay."""

    def keep(self, length, page, branches):
        return ()


class Everything(RetentionPolicy):
    """As right, without a list."""

    def keep(self, length, page, branches):
        return range(0, length + 1, page)

    def along(self, start, end, page, branches):
        return range(start + page, end + 1, page)


# --- one fault each ------------------------------------------------------------------------------------------------


class NotDerived:
    keep, along = Ends.keep, Ends.along


class Yields(Ends):
    def along(self, start, end, page, branches):
        yield from branches


class Divides(Ends):
    def keep(self, length, page, branches):
        return [length / page // 1 * page]


class ForgetsThePage(Ends):
    def keep(self, length, page, branches):
        return [length]


class ForgetsThePageOfAPrompt(Ends):
    def prompted(self, length, page):
        return [length]


class AnswersAPromptBeyondItsEnd(Ends):
    def prompted(self, length, page):
        return [length // page * page + page]


class KnowsOnePage(Ends):
    def along(self, start, end, page, branches):
        return range(start // 16 * 16 + 16, end + 1, 16)


class RoundsUp(Ends):
    def keep(self, length, page, branches):
        return [-(-length // page) * page]


class GoesBelow(Ends):
    def keep(self, length, page, branches):
        end = length // page * page
        return [end - page, end]


class BeginsAtTheStart(Ends):
    def along(self, start, end, page, branches):
        return [start, *branches]


class PassesTheEnd(Ends):
    def along(self, start, end, page, branches):
        return [end + page]


class HoldsAPage(Ends):
    def keep(self, length, page, branches):
        return [max(page, length // page * page)]


class NeedsABranch(Ends):
    def along(self, start, end, page, branches):
        return [branches[-1]]


class EverySecond(Ends):
    def __init__(self):
        self.turn = count()

    def keep(self, length, page, branches):
        return super().keep(length, page, branches) if next(self.turn) % 2 else ()


class RemembersBranches(Ends):
    def __init__(self):
        self.seen = set()

    def along(self, start, end, page, branches):
        self.seen.update(branches)
        return sorted(at for at in self.seen if start < at <= end and at % page == 0)


class TakesBranchesAway(Ends):
    def along(self, start, end, page, branches):
        kept = []
        while branches:
            kept.append(branches.pop())
        return kept


class SaysItAgain(Ends):
    def keep(self, length, page, branches):
        return super().keep(length, page, branches) * 10


class WalksFromTheRoot(Ends):
    def along(self, start, end, page, branches):
        return [at for at in range(page, end + 1, page) if at > start]


class LooksAtAllForEach(Ends):
    def keep(self, length, page, branches):
        return [at for at in branches if branches.count(at) == 1]


class ComparesAll(Ends):
    def along(self, start, end, page, branches):
        return [at for at in branches if sum(other < at for other in branches) >= 0]
