"""A store with a server, right and wrong: a dictionary behind a socket, and clients that bear its loss or do not.

The server answers pickled (verb, key, page) with a pickled value, one connection a client thread.
"""

from __future__ import annotations

import pickle
import socket
import struct
import sys
import threading
import time
from pathlib import Path

from stepwell import DONE, MISSING, Failed, Storage, StoredPage
from stepwell_testkit.server import Server

HERE = Path(__file__)


def send(sock, value):
    data = pickle.dumps(value)
    sock.sendall(struct.pack("<I", len(data)) + data)


def receive(sock):
    return pickle.loads(exactly(sock, struct.unpack("<I", exactly(sock, 4))[0]))


def exactly(sock, count):
    data = b""
    while len(data) < count:
        more = sock.recv(count - len(data))
        if not more:
            raise ConnectionError("the server has gone")
        data += more
    return data


def serve(port):
    pages: dict[bytes, bytes] = {}

    def talk(sock):
        try:
            while True:
                verb, key, page = receive(sock)
                match verb:
                    case "get":
                        send(sock, pages.get(key))
                    case "has":
                        send(sock, key in pages)
                    case "set":
                        pages[key] = page
                        send(sock, True)
                    case "del":
                        pages.pop(key, None)
                        send(sock, True)
                    case "all":
                        send(sock, [(name, len(data)) for name, data in list(pages.items())])
        except OSError:
            sock.close()

    with socket.create_server(("127.0.0.1", port)) as door:
        while True:
            sock, _ = door.accept()
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=talk, args=(sock,), daemon=True).start()


def server(folder):
    return Server(lambda ports: [sys.executable, str(HERE), str(ports[0])], folder)


class Remote(Storage):
    """Each call takes a connection of its pool; one that failed is closed, and the next call makes another."""

    wait_s = 0.3

    def __init__(self, port):
        self.port = port
        self.pool: list[socket.socket] = []
        self.ask("has", b"")

    def connect(self):
        sock = socket.create_connection(("127.0.0.1", self.port), self.wait_s)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock

    def ask(self, verb, key, page=None):
        sock = self.pool.pop() if self.pool else self.connect()
        try:
            send(sock, (verb, key, page))
            value = receive(sock)
        except OSError:
            sock.close()
            raise
        self.pool.append(sock)
        return value

    def contains(self, keys):
        return [self.ask("has", key) for key in keys]

    def read(self, keys, into):
        return [self.read_one(key, out) for key, out in zip(keys, into.buffers(), strict=True)]

    def write(self, keys, pages):
        return [self.write_one(key, page) for key, page in zip(keys, pages.buffers(), strict=True)]

    def read_one(self, key, out):
        page = self.ask("get", key)
        if page is None:
            return MISSING
        if len(page) != len(out):
            return Failed("another size")
        out[:] = page
        return DONE

    def write_one(self, key, page):
        self.ask("set", key, bytes(page))
        return DONE

    def delete(self, keys):
        for key in keys:
            self.ask("del", key)

    def scan(self):
        yield [StoredPage(*one) for one in self.ask("all", b"")]

    def close(self):
        while self.pool:
            self.pool.pop().close()


# --- one fault each ------------------------------------------------------------------------------------------------


class WaitsForEver(Remote):
    wait_s = None


class NeverAsksAgain(Remote):
    """Its connections are made once."""

    dead = False

    def ask(self, verb, key, page=None):
        if self.dead:
            raise ConnectionError("it was lost before")
        try:
            return super().ask(verb, key, page)
        except OSError:
            self.dead = True
            raise


class KeepsTheConnection(Remote):
    """Takes a connection whose answer did not come for a good one: the next question gets the last one's answer."""

    def ask(self, verb, key, page=None):
        sock = self.pool.pop() if self.pool else self.connect()
        try:
            send(sock, (verb, key, page))
            return receive(sock)
        except ConnectionError:
            sock.close()
            sock = None
            raise
        finally:
            if sock:
                self.pool.append(sock)


class ErrorsAreTrue(Remote):
    """Takes an error code for a yes."""

    def contains(self, keys):
        try:
            return super().contains(keys)
        except OSError:
            return [True] * len(keys)


class DoneWhileDead(Remote):
    def write_one(self, key, page):
        try:
            return super().write_one(key, page)
        except OSError:
            return DONE


class DoneWithoutBytes(Remote):
    def read_one(self, key, out):
        try:
            return super().read_one(key, out)
        except OSError:
            return DONE


class ForgetsToDelete(Remote):
    """Says nothing of a deletion that did not reach the server."""

    def delete(self, keys):
        try:
            self.ask("has", b"")
            super().delete(keys)
        except OSError:
            return


class RetriesForEver(Remote):
    def ask(self, verb, key, page=None):
        while True:
            try:
                return super().ask(verb, key, page)
            except OSError:
                time.sleep(0.02)


class EndsTheThread(Remote):
    def read(self, keys, into):
        try:
            return super().read(keys, into)
        except OSError:
            raise SystemExit(1) from None


class CloseSaysGoodbye(Remote):
    def close(self):
        self.ask("has", b"")
        super().close()


class CloseWaits(Remote):
    def close(self):
        RetriesForEver.ask(self, "has", b"")
        super().close()


class AnswersLate(Remote):
    """Gives up on an answer, and lets it into the caller's memory when it comes."""

    def read(self, keys, into):
        results = []
        for key, out in zip(keys, into.buffers(), strict=True):
            done = threading.Event()

            def fetch(key=key, out=out, done=done):
                sock = socket.create_connection(("127.0.0.1", self.port))
                with sock:
                    send(sock, ("get", key, None))
                    page = receive(sock)
                self.last = MISSING if page is None else DONE
                if page is not None:
                    out[:] = page
                done.set()

            threading.Thread(target=fetch, daemon=True).start()
            results.append(self.last if done.wait(0.2) else Failed("timed out"))
        return results


class WaitsForTheRest(Remote):
    """Takes the end of a connection for a pause in it."""

    def ask(self, verb, key, page=None):
        try:
            return super().ask(verb, key, page)
        except ConnectionError:
            time.sleep(600)


if __name__ == "__main__":
    serve(int(sys.argv[1]))
