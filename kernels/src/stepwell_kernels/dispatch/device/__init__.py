"""Triton kernels of experts over ranks."""
