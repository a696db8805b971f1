"""Kernels. Each is launched by one rank and stores into the memory of the others; those that wait have a time limit."""
