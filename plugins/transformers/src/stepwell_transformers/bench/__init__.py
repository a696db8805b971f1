"""`stepwell bench decode`, `prefill`, `overlap`, `hit` and `transfer`: how near to its limits a model runs here."""
