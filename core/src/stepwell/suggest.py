"""What somebody who misspelt a name probably meant."""

from collections.abc import Iterable
from difflib import get_close_matches


def meant(word: str, among: Iterable[str], most: int | None = None) -> str:
    """The end of a sentence: `; did you mean root?`, else `; have a, b`, with `most` names at most."""
    names = sorted(set(among))
    close = get_close_matches(word, names, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {close[0]}?"
    more = f" and {len(names) - most} more" if most is not None and len(names) > most else ""
    return "; have " + ", ".join(names[:most]) + more if names else "; there is none"
