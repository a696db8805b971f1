"""Triton kernels run in its interpreter where there is no CUDA; set before anything imports Triton."""

import importlib.util
import os

import torch


def _count_by_scalars() -> None:
    """Let the interpreter's `range` take what a kernel computes: NumPy 2.4 turns no array of one number into an int."""
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patched(tensor, scope):
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    interpreter._patch_lang_tensor = patched


if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
    if importlib.util.find_spec("triton"):
        _count_by_scalars()
