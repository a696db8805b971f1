"""What a plugin raised or answered, as text: of bounded length, and even where it cannot be shown."""

SHOWN = 200
"""Letters of it."""


def said(value: object) -> str:
    """Its repr, or of what type it is where it has none."""
    try:
        return repr(value)[:SHOWN]
    except Exception:
        return f"a {type(value).__name__}"
