"""Triton kernels of the fused operations."""
