"""Just enough HTTP over asyncio streams for the load test.

It shares its machine with what it tests, and a full client would take more of that than the server does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Protocol
from urllib.parse import urlsplit

import msgspec


class Target(Protocol):
    """The server that is asked."""

    @property
    def url(self) -> str: ...
    @property
    def api_key(self) -> str | None: ...


class Refused(Exception):
    """The server answered with an error, or not to the end."""


async def events(target: Target, body: bytes) -> AsyncGenerator[bytes, None]:
    """Data of the server-sent events that answer a chat. Closing it early closes the connection."""
    reader, writer = await _send(target, "POST", "/v1/chat/completions", target.api_key, body)
    try:
        status, headers = await _head(reader)
        if status != 200:
            error = msgspec.json.decode(await _rest_of(reader, headers))["error"]
            raise Refused(f"{status}: {error['code']}")
        while (size := int(await reader.readline(), 16)) > 0:
            chunk = await reader.readexactly(size + 2)
            for line in chunk.splitlines():
                if line.startswith(b"data: "):
                    yield line[6:]
    finally:
        writer.close()


async def get(target: Target, path: str, key: str | None, method: str = "GET") -> bytes:
    """The body of a request that has none itself. Raises Refused."""
    reader, writer = await _send(target, method, path, key, b"")
    try:
        status, headers = await _head(reader)
        body = await _rest_of(reader, headers)
        if status != 200:
            raise Refused(f"{path}: {status}: {body[:200].decode(errors='replace')}")
        return body
    finally:
        writer.close()


async def _send(
    target: Target, method: str, path: str, key: str | None, body: bytes
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    parts = urlsplit(target.url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port or 80)
    head = [f"{method} {path} HTTP/1.1", f"host: {parts.netloc}", "connection: close", f"content-length: {len(body)}"]
    head += [f"authorization: Bearer {key}"] if key else []
    writer.write("\r\n".join([*head, "content-type: application/json", "", ""]).encode() + body)
    await writer.drain()
    return reader, writer


async def _head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
    return int(lines[0].split()[1]), headers


async def _rest_of(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    return await reader.readexactly(int(headers["content-length"]))
