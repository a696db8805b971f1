"""Float32 products in float32: TF32 would change greedy answers. A setting of the whole process, given back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def exact_products() -> Iterator[None]:
    """No TF32 within."""
    matmul = torch.backends.cuda.matmul
    before: str = matmul.fp32_precision
    if before == "tf32":
        matmul.fp32_precision = "ieee"
    try:
        yield
    finally:
        if before == "tf32":
            matmul.fp32_precision = before
