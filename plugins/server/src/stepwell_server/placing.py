"""How a request is to be placed among others: its routing key, its priority, and whose it is.

What a body says wins over a header: a client that speaks to the server itself knows better than what stands between.
Whose a request is, is another matter, since shares are cut by it: the settings say whom to believe.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from stepwell_server.body import MOST_CHARS, Body
from stepwell_server.errors import bad
from stepwell_server.settings import TenantFrom

ROUTING_HEADERS = ("x-stepwell-routing-key", "x-smg-routing-key")
PRIORITY_HEADER = "x-stepwell-priority"
TENANT_HEADER = "x-stepwell-tenant"
INTEGER = re.compile(r"[+-]?[0-9]{1,19}")


def routing_keys(body: Body, headers: Mapping[str, str], prompts: int) -> list[str | None]:
    """A routing key a prompt: the body's own first, then a header's, then prompt_cache_key."""
    if isinstance(body.routing_key, list):
        if len(body.routing_key) != prompts:
            raise bad("routing_key", f"routing_key: {len(body.routing_key)} keys for {prompts} prompts")
        return list(body.routing_key)
    return [body.routing_key or label(headers, ROUTING_HEADERS) or body.prompt_cache_key] * prompts


def priority(body: Body, headers: Mapping[str, str]) -> int:
    """The body's, or the header's, or 0."""
    if body.priority is not None:
        return body.priority
    given = headers.get(PRIORITY_HEADER)
    if not given:
        return 0
    if not INTEGER.fullmatch(given) or not -(2**63) <= int(given) < 2**63:
        raise bad(PRIORITY_HEADER, f"the header {PRIORITY_HEADER} is no whole number of 64 bits")
    return int(given)


def tenant(body: Body, headers: Mapping[str, str], key: str | None, source: TenantFrom) -> str | None:
    """Whose the request is. `key`: name of the API key that it showed."""
    match source:
        case "user":
            return body.user or body.safety_identifier
        case "key":
            return key
        case "header":
            return label(headers, (TENANT_HEADER,))
        case "nothing":
            return None


def label(headers: Mapping[str, str], names: Sequence[str]) -> str | None:
    """The first of these headers that says anything; an empty one is as good as none."""
    for name in names:
        text = _utf8(headers.get(name, ""))
        if len(text) > MOST_CHARS:
            raise bad(name, f"the header {name} is longer than {MOST_CHARS} characters")
        if text:
            return text
    return None


def _utf8(text: str) -> str:
    """A header as it was meant: a name is the same whether a body or a header says it."""
    try:
        return text.encode("latin-1").decode()
    except UnicodeError:
        return text
