"""Two right storages, in memory and in files, and what can be wrong with a storage."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

from stepwell import DONE, MISSING, Failed, PageViews, Storage, StoredPage


class Memory(Storage):
    """Pages in a dictionary, the oldest dropped beyond `limit` bytes."""

    def __init__(self, limit: int = 1 << 40) -> None:
        self.pages: dict[bytes, bytes] = {}
        self.limit = limit
        self.lock = threading.Lock()

    def contains(self, keys):
        return [key in self.pages for key in keys]

    def read(self, keys, into):
        return [self.read_one(key, out) for key, out in zip(keys, into.buffers(), strict=True)]

    def write(self, keys, pages):
        return [self.write_one(key, page) for key, page in zip(keys, pages.buffers(), strict=True)]

    def delete(self, keys):
        for key in keys:
            self.pages.pop(key, None)

    def scan(self):
        with self.lock:
            held = [StoredPage(key, len(page)) for key, page in self.pages.items()]
        for at in range(0, len(held), 100):
            yield held[at : at + 100]

    def read_one(self, key, out):
        page = self.pages.get(key)
        if page is None:
            return MISSING
        if len(page) != len(out):
            return Failed("another size")
        out[:] = page
        return DONE

    def write_one(self, key, page):
        with self.lock:
            self.pages[key] = bytes(page)
            while sum(map(len, self.pages.values())) > self.limit:
                self.pages.pop(next(iter(self.pages)))
        return DONE


class Files(Storage):
    """One file a page, published by rename."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)

    def path(self, key):
        return self.root / key.hex()

    def contains(self, keys):
        return [self.path(key).exists() for key in keys]

    def read(self, keys, into):
        return [self.read_one(self.path(key), out) for key, out in zip(keys, into.buffers(), strict=True)]

    def write(self, keys, pages):
        return [self.write_one(self.path(key), page) for key, page in zip(keys, pages.buffers(), strict=True)]

    def delete(self, keys):
        for key in keys:
            self.path(key).unlink(missing_ok=True)

    def scan(self):
        for path in list(self.root.iterdir()):
            with suppress(FileNotFoundError):
                if not path.suffix:
                    yield [StoredPage(bytes.fromhex(path.name), path.stat().st_size)]

    def read_one(self, path, out):
        try:
            with path.open("rb", buffering=0) as file:
                return DONE if file.readinto(out) == len(out) else Failed("short page")
        except FileNotFoundError:
            return MISSING

    def write_one(self, path, page):
        part = path.with_suffix(f".{os.getpid()}.{threading.get_ident()}")
        try:
            part.write_bytes(page)
            part.replace(path)
        except OSError as error:
            part.unlink(missing_ok=True)
            return Failed(str(error))
        return DONE


class Plain(Memory):
    """Can do nothing beyond what every storage must: it keeps what it is asked to delete, and lists nothing."""

    scan = Storage.scan

    def delete(self, keys):
        pass


class Named(Memory):
    """Reaches the arena through its name."""

    def attach(self, arena):
        self.start = arena.address
        with Path("/dev/shm", arena.name).open("r+b") as file:
            self.shared = mmap.mmap(file.fileno(), 0)

    def own(self, views):
        memory = memoryview(self.shared)
        return PageViews(views.addresses, views.sizes, memory, self.start)

    def read(self, keys, into):
        return super().read(keys, self.own(into))

    def write(self, keys, pages):
        return super().write(keys, self.own(pages))


class Limited(Memory):
    """Can be full, and can be damaged."""

    full = False

    def write_one(self, key, page):
        return Failed("no room") if self.full and key not in self.pages else super().write_one(key, page)

    @contextmanager
    def filled(self):
        self.full = True
        yield
        self.full = False

    def damage(self, key, how):
        page = self.pages[key]
        self.pages[key] = page[: len(page) // 2] if how == "short" else bytes([page[0] ^ 1]) + page[1:]


# --- one fault each ------------------------------------------------------------------------------------------------


class ShortReadIsDone(Memory):
    def read_one(self, key, out):
        if key not in self.pages:
            return MISSING
        half = len(out) // 2
        out[:half] = self.pages[key][:half]
        return DONE


class KeepsTheBuffer(Memory):
    def write_one(self, key, page):
        self.pages[key] = page
        return DONE


class DropsSilently(Memory):
    def write_one(self, key, page):
        return DONE if key[0] % 5 == 0 else super().write_one(key, page)


class AnswersOutOfOrder(Memory):
    def read(self, keys, into):
        return sorted(super().read(keys, into), key=lambda result: result != DONE)


class CountsKeysOnce(Memory):
    def read(self, keys, into):
        return list(dict(zip(keys, super().read(keys, into), strict=True)).values())


class FailsOnRepeats(Memory):
    def write(self, keys, pages):
        if len(set(keys)) < len(keys):
            return [Failed("duplicate key")] * len(keys)
        return super().write(keys, pages)


class ShortAnswer(Memory):
    def read(self, keys, into):
        results = super().read(keys, into)
        return results[: results.index(MISSING) + 1] if MISSING in results else results


class AnswersBooleans(Memory):
    def read(self, keys, into):
        return [result == DONE for result in super().read(keys, into)]


class MissingIsFailed(Memory):
    def read_one(self, key, out):
        return Failed("not found") if key not in self.pages else super().read_one(key, out)


class RefusesRewrite(Memory):
    def write_one(self, key, page):
        return Failed("exists") if key in self.pages else super().write_one(key, page)


class ContainsEverything(Memory):
    def contains(self, keys):
        return [True] * len(keys)


class RaisesOnEmpty(Memory):
    def read(self, keys, into):
        first = keys[0]
        return super().read(keys, into) if first else []


class RaisesOnAbsentDelete(Memory):
    def delete(self, keys):
        for key in keys:
            del self.pages[key]


class DeletesNothing(Memory):
    def delete(self, keys):
        pass


class CutsKeys(Memory):
    def read_one(self, key, out):
        return super().read_one(key[:32], out)

    def write_one(self, key, page):
        return super().write_one(key[:32], page)

    def contains(self, keys):
        return super().contains([key[:32] for key in keys])

    def delete(self, keys):
        super().delete([key[:32] for key in keys])


class KeysAreNames(Files):
    def path(self, key):
        return super().path(key.lower())


class TouchesAnotherSlot(Memory):
    def attach(self, arena):
        self.arena = arena

    def read(self, keys, into):
        results = super().read(keys, into)
        offset, stride, _ = self.arena.slots(0)
        for at in (into.addresses[:, 0] - self.arena.address).tolist():
            beside = offset + (at - offset + stride) % self.arena.nbytes
            self.arena.memory[beside : beside + 8] = bytes(8)
        return results


class ReadsWholeBlocks(Memory):
    def attach(self, arena):
        self.arena = arena

    def read(self, keys, into):
        results = super().read(keys, into)
        _, stride, size = self.arena.slots(0)
        for at in (into.addresses[:, 0] - self.arena.address).tolist():
            self.arena.memory[at + size : at + stride] = bytes(stride - size)
        return results


class ClearsWhatItWrites(Memory):
    def write_one(self, key, page):
        result = super().write_one(key, page)
        page[:16] = bytes(16)
        return result


class ReadsOneRun(Memory):
    """Takes the pages of a batch for one contiguous run."""

    def attach(self, arena):
        self.arena = arena

    def read(self, keys, into):
        _, stride, size = self.arena.slots(0)
        if not keys:
            return []
        start = int(into.addresses[0, 0]) - self.arena.address
        views = [self.arena.memory[start + i * stride : start + i * stride + size] for i in range(len(keys))]
        return [self.read_one(key, view) if len(view) else MISSING for key, view in zip(keys, views, strict=True)]


class WholeSectorsOnly(Memory):
    def write_one(self, key, page):
        return super().write_one(key, page) if len(page) % 4096 == 0 else Failed("size")


class LooksThenTakes(Memory):
    def read_one(self, key, out):
        if key not in self.pages:
            return MISSING
        time.sleep(0.0005)
        out[:] = self.pages[key]
        return DONE


class OneScratchBuffer(Memory):
    scratch = bytearray()

    def write_one(self, key, page):
        self.scratch = bytearray(page)
        time.sleep(0.0005)
        self.pages[key] = bytes(self.scratch)
        return DONE


class WritesInPlace(Memory):
    def write_one(self, key, page):
        held = self.pages.setdefault(key, bytearray(len(page)))
        for at in range(0, len(page), 1 << 16):
            held[at : at + (1 << 16)] = page[at : at + (1 << 16)]
            time.sleep(0)
        return DONE


class VisibleAfterFailure(Files):
    def write_one(self, path, page):
        try:
            path.write_bytes(page)
        except OSError as error:
            return Failed(str(error))
        return DONE

    def read_one(self, path, out):
        try:
            page = path.read_bytes()
        except FileNotFoundError:
            return MISSING
        out[: len(page)] = page
        return DONE


class DoneWithoutRoom(Files):
    def write_one(self, path, page):
        super().write_one(path, page)
        return DONE


class TornByAKill(VisibleAfterFailure):
    def write_one(self, path, page):
        half = len(page) // 2
        with path.open("wb", buffering=0) as file:
            file.write(page[:half])
            time.sleep(0.005)
            file.write(page[half:])
        return DONE


class MixesProcesses(Files):
    """Safe among threads; two processes write through one path."""

    lock = threading.Lock()

    def write_one(self, path, page):
        with self.lock, path.open("r+b" if path.exists() else "wb", buffering=0) as file:
            for at in range(0, len(page), 1 << 16):
                file.write(page[at : at + (1 << 16)])
                time.sleep(0)
        return DONE

    def read_one(self, path, out):
        with self.lock:
            return super().read_one(path, out)


class ForgetsAtTheEnd(Memory):
    """Claims to persist, and does while its process lives."""

    kept: dict[Path, dict[bytes, bytes]] = {}

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.pages = self.kept.setdefault(root, self.pages)


class SeesOnlyItsOwn(Files):
    """Claims to be shared, and knows its folder as it was when opened."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.known = set(root.iterdir())

    def read_one(self, path, out):
        return super().read_one(path, out) if path in self.known else MISSING

    def write_one(self, path, page):
        self.known.add(path)
        return super().write_one(path, page)


class CopiesOnRead(Files):
    def read_one(self, path, out):
        try:
            out[:] = path.read_bytes()
        except FileNotFoundError:
            return MISSING
        return DONE


class NeverEvicts(Memory):
    def __init__(self, limit: int) -> None:
        super().__init__()


class FullIsFailed(Memory):
    def write_one(self, key, page):
        if sum(map(len, self.pages.values())) + len(page) > self.limit:
            return Failed("full")
        return super().write_one(key, page)


# --- deletion ---


class LeasesWhatWasRead(Memory):
    """Keeps a page for a while after a read of it."""

    def __init__(self):
        super().__init__()
        self.leased = set()

    def read_one(self, key, out):
        self.leased.add(key)
        return super().read_one(key, out)

    def delete(self, keys):
        super().delete([key for key in keys if key not in self.leased])


class RemembersByThread(Memory):
    """Each thread has a cache of what it read."""

    def __init__(self):
        super().__init__()
        self.mine = threading.local()

    def read_one(self, key, out):
        seen = self.mine.__dict__.setdefault("seen", {})
        if key in seen and threading.current_thread() is not threading.main_thread():
            out[:] = seen[key]
            return DONE
        result = super().read_one(key, out)
        if result == DONE:
            seen[key] = bytes(out)
        return result

    def delete(self, keys):
        super().delete(keys)
        self.mine.__dict__.setdefault("seen", {}).clear()


class TrustsWhatItSaid(Memory):
    """Takes a page for there since it said so."""

    said = frozenset()

    def contains(self, keys):
        found = super().contains(keys)
        self.said = {key for key, there in zip(keys, found, strict=True) if there}
        return found

    def read_one(self, key, out):
        if key in self.said:
            out[:] = self.pages[key]
            return DONE
        return super().read_one(key, out)


# --- listing ---


class ListsDeleted(Memory):
    def __init__(self):
        super().__init__()
        self.ever = {}

    def write_one(self, key, page):
        self.ever[key] = len(page)
        return super().write_one(key, page)

    def scan(self):
        yield [StoredPage(*one) for one in self.ever.items()]


class ListsDropped(ListsDeleted):
    def __init__(self, limit):
        super().__init__()
        self.limit = limit


class ListsTwice(Memory):
    def scan(self):
        for batch in super().scan():
            yield batch
            yield batch[:1]


class ListsBlocks(Memory):
    """Measures what a page takes, not what it is."""

    def scan(self):
        for batch in super().scan():
            yield [StoredPage(key, -(-size // 4096) * 4096) for key, size in batch]


class ListsAsItGoes(Memory):
    def scan(self):
        for key, page in self.pages.items():
            yield [StoredPage(key, len(page))]


class ListsWhatHasGone(Memory):
    def scan(self):
        for key in list(self.pages):
            time.sleep(0.0002)
            yield [StoredPage(key, len(self.pages[key]))]


class ListsUnderItsLock(Memory):
    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()

    def scan(self):
        with self.lock:
            for key, page in self.pages.items():
                yield [StoredPage(key, len(page))]


class ListsTheFirstHundred(Memory):
    def scan(self):
        yield next(super().scan(), [])


class ListsStrangers(Memory):
    def scan(self):
        yield from super().scan()
        if self.pages:
            yield [StoredPage(b"of somebody else".ljust(40), 4096)]


class ListsNames(Memory):
    def scan(self):
        for batch in super().scan():
            yield [StoredPage(key.hex().encode(), size) for key, size in batch]


class ListsTuples(Memory):
    def scan(self):
        for batch in super().scan():
            yield [tuple(page) for page in batch]


class ListsPrintable(Memory):
    """Loses keys that are no text."""

    def scan(self):
        for batch in super().scan():
            yield [page for page in batch if not page.key.endswith(b"\xff")]


class ListsWhatItWrote(Files):
    def __init__(self, root):
        super().__init__(root)
        self.wrote = set()

    def write_one(self, path, page):
        self.wrote.add(path.name)
        return super().write_one(path, page)

    def scan(self):
        for batch in super().scan():
            yield [page for page in batch if page.key.hex() in self.wrote]


class ListsHalves(Files):
    """A page that could not be written stays, and is listed."""

    def write_one(self, path, page):
        result = super().write_one(path, page)
        if result != DONE:
            path.with_suffix(".half").touch()
        return result

    def scan(self):
        yield from super().scan()
        for path in self.root.glob("*.half"):
            yield [StoredPage(bytes.fromhex(path.stem), 0)]


# --- one page of a batch ---


class ShortIsDone(Limited):
    def read_one(self, key, out):
        page = self.pages.get(key)
        if page is None:
            return MISSING
        out[: len(page)] = page[: len(out)]
        return DONE


class OneBadPageFailsAll(Limited):
    def read(self, keys, into):
        results = super().read(keys, into)
        bad = [result for result in results if isinstance(result, Failed)]
        return bad[:1] * len(keys) if bad else results


class OneBadPageRaises(Limited):
    def read_one(self, key, out):
        out[:] = self.pages[key] if key in self.pages else bytes(len(out))
        return DONE if key in self.pages else MISSING


class BeyondTheView(Memory):
    def read(self, keys, into):
        for key, at in zip(keys, into.addresses[:, 0].tolist(), strict=True):
            ctypes.memmove(at, self.pages.get(key, b""), len(self.pages.get(key, b"")))
        return [DONE if key in self.pages else MISSING for key in keys]


class BucketOfNewKeys(Memory):
    """Stores a batch whole or, where one of its keys is there, not at all."""

    def write(self, keys, pages):
        if sum(key in self.pages for key in keys) == 1 and len(keys) > 3:
            return [Failed("exists")] * len(keys)
        return super().write(keys, pages)


# --- room ---


class DoneWithoutStoring(Limited):
    def write_one(self, key, page):
        return DONE if self.full else super().write_one(key, page)


class VisibleThoughFull(Limited):
    def write_one(self, key, page):
        result = super().write_one(key, page)
        if result != DONE:
            self.pages[key] = bytes(page)
        return result


class EmptiesItself(Limited):
    """Makes room for what it then refuses."""

    def write_one(self, key, page):
        if self.full:
            self.pages.clear()
        return super().write_one(key, page)


class StaysFull(Limited):
    been = False

    def write_one(self, key, page):
        self.been = self.been or self.full
        return Failed("no room") if self.been else super().write_one(key, page)


# --- several at once ---


class OneAnswer(Memory):
    """All calls fill one list."""

    def read(self, keys, into):
        self.results = results = []
        for key, out in zip(keys, into.buffers(), strict=True):
            self.results.append(self.read_one(key, out))
            time.sleep(0)
        return results


class HangsOnceClosed(Memory):
    closed = False

    def read_one(self, key, out):
        time.sleep(0.001)
        while self.closed:
            time.sleep(0.1)
        return super().read_one(key, out)

    def close(self):
        self.closed = True


class CrashesOnceClosed(HangsOnceClosed):
    def read_one(self, key, out):
        time.sleep(0.001)
        if self.closed:
            os.kill(os.getpid(), signal.SIGSEGV)
        return Memory.read_one(self, key, out)


class OpensItsMemoryLate(Named):
    def attach(self, arena):
        self.arena, self.start, self.shared = arena, arena.address, None

    def own(self, views):
        if self.shared is None:
            super().attach(self.arena)
        return super().own(views)


class ForgetsWhenReopened(Files):
    def __init__(self, root):
        super().__init__(root)
        for path in sorted(root.iterdir())[:1]:
            path.unlink()
