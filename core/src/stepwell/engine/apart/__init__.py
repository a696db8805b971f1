"""A storage in a process of its own, so that a client that hangs, holds everything up or crashes costs hits only."""
