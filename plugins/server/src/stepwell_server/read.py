"""Taking a request's body within limits, and checking who asks."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import Mapping

from starlette.requests import ClientDisconnect, Request

from stepwell_server.deliver import ClientGone
from stepwell_server.errors import ApiError, bad

CLOSE = {"connection": "close"}
"""What was not read of a body must not be taken for the next request."""


async def body(request: Request, most: int, patience_s: float) -> bytes:
    """The body, which has to be JSON by its type, no larger than `most`, and to arrive in time."""
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(415, f"content-type {kind[:64]!r} is not supported; send application/json", headers=CLOSE)
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise ApiError(415, "compressed bodies are not supported", headers=CLOSE)
    told = request.headers.get("content-length", "0")
    if told.isdecimal() and int(told[:20]) > most:
        raise _too_large(most)
    parts, size = [], 0
    try:
        async with asyncio.timeout(patience_s):
            async for part in request.stream():
                size += len(part)
                if size > most:
                    raise _too_large(most)
                parts.append(part)
    except TimeoutError:
        raise ApiError(408, f"the body did not arrive within {patience_s:g} s", headers=CLOSE) from None
    except ClientDisconnect:
        raise ClientGone from None
    if not size:
        raise bad(None, "the body is empty; send a JSON object", "invalid_json")
    return b"".join(parts)


def _too_large(most: int) -> ApiError:
    return ApiError(413, f"the body is larger than {most} bytes", code="body_too_large", headers=CLOSE)


KEY_NAME = "stepwell.key_name"
"""Where the scope of a request has the name of the key that it showed."""


class Keys:
    """Bearer tokens of which requests have to show one, by the name of whoever has it; None: it has no name."""

    def __init__(self, keys: Mapping[str | None, str]) -> None:
        self._names = {hashlib.sha256(key.encode()).digest(): name for name, key in keys.items()}

    def check(self, header: str | None) -> str | None:
        """The name of the key in the Authorization header. Raises ApiError; takes as long for every wrong one."""
        scheme, _, token = (header or "").partition(" ")
        shown = hashlib.sha256(token.strip().encode("utf-8", "surrogateescape")).digest()
        known = [name for digest, name in self._names.items() if hmac.compare_digest(shown, digest)]
        if not known or scheme.lower() != "bearer":
            raise ApiError(
                401,
                "the API key is missing or wrong; send it as 'Authorization: Bearer KEY'",
                kind="authentication_error",
                code="invalid_api_key",
                headers={"www-authenticate": "Bearer"},
            )
        return known[0]
