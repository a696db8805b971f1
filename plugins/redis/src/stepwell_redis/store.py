"""The store: a page is a value, set and got whole, by a key that anybody can read in redis-cli.

A value appears with the last byte of its SET or not at all, so pages need no more care than that. Writing a key again
replaces it, which mends a value that was damaged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

import redis
from redis.exceptions import RedisError

from stepwell import Context, Failed, PageKey, PageResult, PageViews, Storage, StoredPage
from stepwell_redis.config import RedisConfig
from stepwell_redis.server import CONFUSED, check, pool_of
from stepwell_redis.wire import Link

WINDOW = 512 * 1024
"""Bytes of pages that are asked for at once; twice as many are under way. The server buffers what is not yet read."""
WINDOW_KEYS = 512
"""The same for commands without pages."""
SCANNED = 1000
KEY_HEX = 80


class RedisStorage(Storage):
    """Pages in a Redis or Valkey server."""

    def __init__(self, config: RedisConfig, context: Context) -> None:
        check(config, context.log)
        self._place = config.place
        self._prefix = config.prefix
        self._pool = pool_of(config, config.timeout_s)
        self._client = redis.Redis(connection_pool=self._pool)
        life = b"$2\r\nPX\r\n" + _argument(b"%d" % max(1, round(config.ttl_s * 1000)))
        self._set_head = _head("SET", 5 if config.ttl_s else 3)
        self._set_tail = b"\r\n" + (life if config.ttl_s else b"")
        self._life = life if config.refresh_on_read else b""

    def contains(self, keys: Sequence[PageKey]) -> Sequence[bool]:
        head = _head("EXISTS", 2)
        names = self._names(keys)
        found: list[bool] = []

        def send(link: Link, part: slice) -> None:
            link.send([head + name for name in names[part]], 0)

        def receive(link: Link, part: slice) -> None:
            found.extend(map(bool, link.numbers(len(names[part]))))

        error = self._exchange(len(keys), WINDOW_KEYS, send, receive)
        if error is not None:
            raise ConnectionError(error)
        return found

    def read(self, keys: Sequence[PageKey], into: PageViews) -> Sequence[PageResult]:
        names, life = self._names(keys), self._life
        buffers = into.buffers()
        results: list[PageResult] = []

        def send(link: Link, part: slice) -> None:
            if life:
                link.send([_GETEX + name + life for name in names[part]], 0)
            else:
                link.send([_head("MGET", 1 + part.stop - part.start), *names[part]], 0)

        def receive(link: Link, part: slice) -> None:
            if life or link.array(part.stop - part.start, results):
                link.pages(buffers[part], results)

        error = self._exchange(len(keys), _step(into), send, receive)
        return results + [Failed(error or "")] * (len(keys) - len(results))

    def write(self, keys: Sequence[PageKey], pages: PageViews) -> Sequence[PageResult]:
        size = int(pages.sizes.sum())
        length = b"$%d\r\n" % size
        joint = self._set_tail + self._set_head
        names = self._names(keys)
        buffers = pages.buffers()
        results: list[PageResult] = []

        def send(link: Link, part: slice) -> None:
            pieces: list[bytes | memoryview] = []
            for name, page in zip(names[part], buffers[part], strict=True):
                pieces += (joint + name + length, page)
            pieces[0] = bytes(pieces[0])[len(self._set_tail) :]
            link.send([*pieces, self._set_tail], size)

        def receive(link: Link, part: slice) -> None:
            link.statuses(len(names[part]), results)

        error = self._exchange(len(keys), _step(pages), send, receive)
        return results + [Failed(error or "")] * (len(keys) - len(results))

    def delete(self, keys: Sequence[PageKey]) -> None:
        if keys:
            self._client.unlink(*(self._prefix + key.hex() for key in keys))

    def scan(self) -> Iterator[Sequence[StoredPage]]:
        ours = re.compile(re.escape(self._prefix.encode()) + b"([0-9a-f]{%d})" % KEY_HEX)
        pattern = re.sub(r"([*?\[\]\\^])", r"\\\1", self._prefix) + "*"
        seen: set[PageKey] = set()
        cursor = -1
        while cursor != 0:
            cursor, names = self._client.scan(max(cursor, 0), match=pattern, count=SCANNED)
            found = [match for name in names if (match := ours.fullmatch(name))]
            keys = {bytes.fromhex(match[1].decode()): match[0] for match in found}
            keys = {key: name for key, name in keys.items() if key not in seen}
            seen.update(keys)
            with self._client.pipeline(transaction=False) as pipeline:
                for name in keys.values():
                    pipeline.strlen(name)
                lengths = pipeline.execute(raise_on_error=False)
            # One that has gone meanwhile has no length, and one that is no page answers with an error.
            yield [StoredPage(key, n) for key, n in zip(keys, lengths, strict=True) if isinstance(n, int) and n]

    def close(self) -> None:
        self._pool.disconnect()  # type: ignore[no-untyped-call]

    # --- inside --------------------------------------------------------------------------------------------------

    def _names(self, keys: Sequence[PageKey]) -> list[bytes]:
        """The names of keys as arguments of a command."""
        prefix = self._prefix
        return [_argument((prefix + key.hex()).encode()) for key in keys]

    def _exchange(
        self,
        count: int,
        step: int,
        send: Callable[[Link, slice], None],
        receive: Callable[[Link, slice], None],
    ) -> str | None:
        """Send `step` commands at a time, always one part ahead of the replies; why it broke off, else None."""
        if not count:
            return None
        parts = [slice(at, min(at + step, count)) for at in range(0, count, step)]
        try:
            connection = self._pool.get_connection()
        except (RedisError, OSError, *CONFUSED) as error:
            return self._reason(error)
        whole = False
        try:
            link = Link(connection)
            send(link, parts[0])
            for part, after in zip(parts, [*parts[1:], None], strict=True):
                if after is not None:
                    send(link, after)
                receive(link, part)
            whole = True
        except (RedisError, OSError) as error:
            return self._reason(error)
        finally:
            if not whole:
                connection.disconnect()
            self._pool.release(connection)  # type: ignore[no-untyped-call]
        return None

    def _reason(self, error: Exception) -> str:
        return f"{self._place}: {error or type(error).__name__}"


def _argument(value: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(value), value)


def _head(command: str, parts: int) -> bytes:
    """The start of a command of so many parts, up to its key."""
    return b"*%d\r\n" % parts + _argument(command.encode())


_GETEX = _head("GETEX", 4)


def _step(pages: PageViews) -> int:
    return max(1, WINDOW // max(1, int(pages.sizes.sum())))
