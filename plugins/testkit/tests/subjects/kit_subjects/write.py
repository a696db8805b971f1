"""A right write policy, and what can be wrong with one."""

from stepwell import Cause, Decision, WritePolicy


class Selective(WritePolicy):
    """Copies what has been used twice."""

    reserve = 0.1

    def decide(self, edge, cause, uses):
        return Decision.NOW if uses >= 2 else Decision.LATER


# --- one fault each ------------------------------------------------------------------------------------------------


class SaysTrue(Selective):
    def decide(self, edge, cause, uses):
        return uses >= 2


class ForgetsACause(Selective):
    def decide(self, edge, cause, uses):
        if cause is not Cause.EVICT:
            return super().decide(edge, cause, uses)


class RaisesOnMany(Selective):
    def decide(self, edge, cause, uses):
        return (Decision.LATER, *[Decision.NOW] * 100)[uses]


class EverySecond(Selective):
    def __init__(self) -> None:
        self.turn = 0

    def decide(self, edge, cause, uses):
        self.turn += 1
        return Decision.NOW if self.turn % 2 else Decision.LATER


class CopiesOnce(Selective):
    def decide(self, edge, cause, uses):
        return Decision.NOW if uses == 2 else Decision.LATER


class WithdrawsWhenHot(Selective):
    def decide(self, edge, cause, uses):
        return Decision.NOW if 2 <= uses < 500 else Decision.LATER


class PercentReserve(Selective):
    reserve = 10


class GrowingReserve(Selective):
    def decide(self, edge, cause, uses):
        self.reserve = min(1.0, self.reserve + 0.01)
        return super().decide(edge, cause, uses)
