"""Stepwell's storages as the L3 of SGLang's HiCache: `stepwell_sglang.backend.StepwellStore` is the class it loads."""
