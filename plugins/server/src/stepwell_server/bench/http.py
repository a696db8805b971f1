"""A small HTTP/1.1 client that hands on what comes at the moment it comes.

A measuring client must take less time than the server does: here a piece of an answer costs one parser call in C, and
its time is taken when the event loop hands it over, before anything is parsed.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter
from typing import cast
from urllib.parse import urlsplit

import httptools

from stepwell.errors import ConfigError, StepwellError

KEPT_BODY = 1 << 20
"""Bytes of a body without events that are kept; the rest is dropped."""
REST_S = 0.5
"""How long the end of a message may come after the end of what it says, for its connection to be used again."""
CONNECT_S = 20.0

Take = Callable[[bytes, float], bool]
"""Gets a piece of the body and its time; answers whether the last has come. Raises Broken."""


class Broken(StepwellError):
    """What came, or did not, is no answer; the words are short and the same for the same reason."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server is."""

    host: str
    port: int
    tls: bool
    prefix: str
    authority: str

    @classmethod
    def of(cls, url: str) -> Address:
        """From `http://host:port/v1`. ConfigError: it is no such URL."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise ConfigError(f"{url}: this is no URL") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"{url}: write it as http://HOST:PORT/v1")
        if parts.username is not None:
            raise ConfigError(f"{parts.hostname}: a name or key before the host is not sent; use the option for keys")
        tls = parts.scheme == "https"
        authority = parts.netloc
        return cls(parts.hostname, port or (443 if tls else 80), tls, parts.path.rstrip("/") or "/v1", authority)

    @property
    def url(self) -> str:
        """As it is told."""
        return f"{'https' if self.tls else 'http'}://{self.authority}{self.prefix}"


class Exchange:
    """What comes for one request; the parser calls its `on_` methods."""

    def __init__(self, take: Take | None) -> None:
        self._take = take
        self.parser = httptools.HttpResponseParser(self)
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self.at = 0.0
        """When the latest piece came; 0: nothing has."""
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.whole: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        """Whether the connection can be used again, once all has come."""

    @property
    def status(self) -> int:
        """0 before there is one."""
        return int(self.parser.get_status_code())

    @property
    def streams(self) -> bool:
        """Whether the body is events."""
        return self.status == 200 and self.headers.get("content-type", "").startswith("text/event-stream")

    def feed(self, data: bytes) -> None:
        """Bytes of the connection."""
        self.at = perf_counter()
        try:
            self.parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.fail(Broken("malformed HTTP"))

    def fail(self, error: Exception) -> None:
        """Nothing more will come of it."""
        if not self.over.done():
            self.over.set_exception(error)
        self._used_up()

    def lost(self) -> None:
        """The connection has ended, which is the end of a body that has no other."""
        if self.status and not {"content-length", "transfer-encoding"} & self.headers.keys():
            self._end()
            self._used_up()
        else:
            self.fail(
                Broken("the connection ended before the answer did" if self.at else "no answer, connection ended")
            )

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, data: bytes) -> None:
        if self.over.done():
            return
        if self._take is None or not self.streams:
            self.body += data[: KEPT_BODY - len(self.body)]
            return
        try:
            if self._take(data, self.at):
                self._end()
        except Broken as error:
            self.fail(error)

    def on_message_complete(self) -> None:
        self._end()
        if not self.whole.done():
            self.whole.set_result(self.parser.should_keep_alive())

    def _used_up(self) -> None:
        if not self.whole.done():
            self.whole.set_result(False)

    def _end(self) -> None:
        if not self.over.done():
            self.over.set_result(None)


class Connection(asyncio.Protocol):
    """One connection; one exchange at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._exchange: Exchange | None = None
        self.open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # other loops' transports are no subclasses
        self.open = True

    def data_received(self, data: bytes) -> None:
        if self._exchange is None:
            self.abort()  # nobody has asked anything
        else:
            self._exchange.feed(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.open = False
        if self._exchange is not None:
            self._exchange.lost()

    def send(self, data: bytes, exchange: Exchange) -> None:
        """Ask."""
        assert self._transport is not None
        self._exchange = exchange
        self._transport.write(data)

    def rest(self) -> None:
        """Nothing is asked any more."""
        self._exchange = None

    def abort(self) -> None:
        """End it at once."""
        self.open = False
        self._exchange = None
        if self._transport is not None:
            self._transport.abort()


class HttpClient:
    """Requests to one server; connections that are free are used again. For one event loop."""

    def __init__(self, address: Address, key: str | None = None) -> None:
        self.address = address
        self._key = key
        self._free: list[Connection] = []
        self._tls = ssl.create_default_context() if address.tls else None

    async def ask(self, method: str, path: str, body: bytes = b"", take: Take | None = None) -> Exchange:
        """An answer, to its end; a stream of events goes to `take`. Raises Broken; cancelled, it hangs up."""
        data = self._head(method, path, body) + body
        while (reused := self._reusable()) is not None:
            try:
                return await self._exchange(reused, data, take)
            except Broken:
                if reused.used:  # else the server had hung up before it was asked
                    raise
        return await self._exchange(_Kept(await self._connect()), data, take)

    def close(self) -> None:
        """Hang up."""
        for connection in self._free:
            connection.abort()
        self._free.clear()

    async def _exchange(self, kept: _Kept, data: bytes, take: Take | None) -> Exchange:
        connection, exchange, again = kept.connection, Exchange(take), False
        try:
            connection.send(data, exchange)
            await exchange.over
            with suppress(TimeoutError):
                again = exchange.whole.done() or await asyncio.wait_for(asyncio.shield(exchange.whole), REST_S)
            return exchange
        finally:
            kept.used = exchange.at > 0
            if again and exchange.whole.result() and connection.open:
                connection.rest()
                self._free.append(connection)
            else:
                connection.abort()

    def _reusable(self) -> _Kept | None:
        while self._free:
            connection = self._free.pop()
            if connection.open:
                return _Kept(connection)
        return None

    async def _connect(self) -> Connection:
        loop, address = asyncio.get_running_loop(), self.address
        try:
            async with asyncio.timeout(CONNECT_S):
                _, connection = await loop.create_connection(Connection, address.host, address.port, ssl=self._tls)
        except TimeoutError:
            raise Broken(f"no connection within {CONNECT_S:g} s") from None
        except OSError as error:
            raise Broken(f"no connection: {error.strerror or error}"[:120]) from None
        return connection

    def _head(self, method: str, path: str, body: bytes) -> bytes:
        lines = [
            f"{method} {self.address.prefix}{path} HTTP/1.1",
            f"host: {self.address.authority}",
            "accept: text/event-stream, application/json",
            "user-agent: stepwell-bench",
        ]
        lines += [f"content-length: {len(body)}"] if body or method == "POST" else []
        lines += ["content-type: application/json"] if body else []
        lines += [f"authorization: Bearer {self._key}"] if self._key else []
        return "\r\n".join([*lines, "", ""]).encode()


@dataclass(slots=True)
class _Kept:
    connection: Connection
    used: bool = False
    """Whether anything came of the latest request."""


def retry_after(headers: Mapping[str, str]) -> float:
    """Seconds that the server wants to be left alone; 0 where it does not say so in seconds."""
    try:
        return max(0.0, float(headers.get("retry-after", "0")))
    except ValueError:
        return 0.0
