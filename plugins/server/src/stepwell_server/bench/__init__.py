"""`stepwell bench serve`: throughput and latency of an engine or a server while more and more requests run at once."""
