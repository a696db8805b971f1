"""The brain, the live shell around it, and what travels between processes."""
