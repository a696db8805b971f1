"""How a token travels: its numbers, its experts and their weights in one row of bytes, so that one exchange does."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from stepwell import ConfigError, Traffic

ALIGN = 16
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


@dataclass(frozen=True, slots=True)
class Rows:
    """[rows, width] bytes: a token, `top_k` experts as int32, as many weights as float32, and what fills it up."""

    hidden: int
    top_k: int
    dtype: torch.dtype

    @classmethod
    def of(cls, name: str, traffic: Traffic) -> Rows:
        """For a model's tokens."""
        if traffic.dtype not in DTYPES:
            raise ConfigError(f"{name} moves {' or '.join(DTYPES)}, not {traffic.dtype}; load the model in one of them")
        return cls(traffic.hidden, traffic.top_k, DTYPES[traffic.dtype])

    @property
    def width(self) -> int:
        """Bytes of a row."""
        return -(-(self._token + 8 * self.top_k) // ALIGN) * ALIGN

    def empty(self, *shape: int, device: torch.device) -> torch.Tensor:
        """Rows to be filled."""
        return torch.empty((*shape, self.width), dtype=torch.uint8, device=device)

    def tokens(self, rows: torch.Tensor) -> torch.Tensor:
        """[rows, hidden], in place."""
        return rows.view(self.dtype)[:, : self.hidden]

    def experts(self, rows: torch.Tensor) -> torch.Tensor:
        """[rows, top_k] of int32, in place."""
        return rows.view(torch.int32)[:, self._token // 4 :][:, : self.top_k]

    def weights(self, rows: torch.Tensor) -> torch.Tensor:
        """[rows, top_k] of float32, in place."""
        return rows.view(torch.float32)[:, self._token // 4 + self.top_k :][:, : self.top_k]

    @property
    def _token(self) -> int:
        """Bytes of a token, up to where a number of four bytes may stand."""
        return -(-self.hidden * self.dtype.itemsize // 4) * 4
