"""The kit of dispatchers."""

from stepwell_testkit.dispatch.kit import DispatchKit

__all__ = ["DispatchKit"]
