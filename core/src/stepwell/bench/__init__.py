"""Measurements of the cache's parts; each is a command under `stepwell bench`."""
