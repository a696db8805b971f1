"""One batch there and back by the library alone, in its plainest calls, for a dispatcher to be measured against."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class ByHand:
    """Both generations take a layout and a handle there, and the handle back."""

    def __init__(
        self,
        there: Callable[[], tuple[torch.Tensor, object]],
        back: Callable[[torch.Tensor, Any], object],
    ) -> None:
        self._there, self._back = there, back
        self.dispatch()
        self.combine()

    def dispatch(self) -> object:
        """Rows, and the handle of the way back."""
        self._rows, self._handle = self._there()
        return self._rows

    def combine(self) -> object:
        """The rows as they came."""
        return self._back(self._rows, self._handle)
