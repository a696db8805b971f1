"""OpenAI-compatible HTTP for Stepwell: offers `stepwell serve`."""
