"""`stepwell bench eplb`."""
