"""Steps on a CUDA device: enqueued by one thread and never waited for there, their results read by another."""
