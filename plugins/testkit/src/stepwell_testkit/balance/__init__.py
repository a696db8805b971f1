"""The kit of balancers."""

from stepwell_testkit.balance.kit import BalanceKit

__all__ = ["BalanceKit"]
