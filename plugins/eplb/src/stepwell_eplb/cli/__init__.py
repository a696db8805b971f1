"""`stepwell eplb`: plan a placement from counts, or replay counts over time."""
