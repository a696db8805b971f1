"""The older way in which SGLang hands pages over: as tensors of whole pages, which are copied and sealed."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

from stepwell import DONE, MISSING, Done, PageResult, Storage
from stepwell.cache.arena import TRAILER_BYTES
from stepwell.engine import seal
from stepwell_sglang.calls import Calls, Job, Ticket
from stepwell_sglang.host import Tensor
from stepwell_sglang.memory import Slots
from stepwell_sglang.names import FLAT, Names

Move = Callable[[Ticket, Sequence[bytes], Sequence[memoryview]], list[PageResult]]


class Flat:
    """Values by key, each no larger than a slot."""

    def __init__(self, names: Names, storage: Storage, slots: Slots, calls: Calls) -> None:
        self._names, self._storage, self._slots, self._calls = names, storage, slots, calls
        self.tag = names.tag(FLAT)
        self._step = max(1, slots.count // 2)

    def present(self, hashes: Sequence[str]) -> list[bool]:
        """Whether a read would probably find each value."""
        keys = self._keys(hashes)

        def ask(ticket: Ticket) -> list[PageResult]:
            return [DONE if held else MISSING for held in self._storage.contains(keys)]

        (results,) = self._calls.run([(ask, len(keys))], reading=True, leave=True)
        return [isinstance(one, Done) for one in results]

    def write(self, hashes: Sequence[str], values: Sequence[memoryview]) -> list[bool]:
        """Store values; whether each is there now."""
        return self._batches(hashes, values, self._write, reading=False)

    def read(self, hashes: Sequence[str], into: Sequence[memoryview]) -> list[bool]:
        """Fill buffers; whether each was filled with what was stored."""
        return self._batches(hashes, into, self._read, reading=True)

    def _batches(self, hashes: Sequence[str], values: Sequence[memoryview], move: Move, *, reading: bool) -> list[bool]:
        keys = self._keys(hashes)
        good: list[bool] = []
        for at in range(0, len(keys), self._step):
            part = slice(at, at + self._step)
            (results,) = self._calls.run([_job(move, keys[part], values[part])], reading=reading, leave=True)
            good += [isinstance(one, Done) for one in results]
        return good

    def _write(self, ticket: Ticket, keys: Sequence[bytes], values: Sequence[memoryview]) -> list[PageResult]:
        with self._slots.lend(len(keys)) as at:
            views = self._slots.region.views(at, self._slots.nbytes)
            with ticket.lock:
                if ticket.left:
                    return [MISSING] * len(keys)
                for slot, key, value in zip(views.buffers(), keys, values, strict=True):
                    slot[: len(value)] = value
                    seal.seal(slot, len(value), key)
                    slot[len(value) + TRAILER_BYTES :] = bytes(len(slot) - len(value) - TRAILER_BYTES)
            return list(self._storage.write(keys, views))

    def _read(self, ticket: Ticket, keys: Sequence[bytes], into: Sequence[memoryview]) -> list[PageResult]:
        with self._slots.lend(len(keys)) as at:
            views = self._slots.region.views(at, self._slots.nbytes)
            results = list(self._storage.read(keys, views))
            with ticket.lock:
                if ticket.left:
                    return [MISSING] * len(keys)
                for nth, (slot, key, value) in enumerate(zip(views.buffers(), keys, into, strict=True)):
                    if not isinstance(results[nth], Done):
                        continue
                    wrong = seal.check(slot, len(value), key)
                    if wrong is None:
                        value[:] = slot[: len(value)]
                        continue
                    results[nth] = MISSING
                    self._calls.guard.count("checksum", 1, f"a page came back damaged ({wrong})")
            return results

    def _keys(self, hashes: Sequence[str]) -> list[bytes]:
        return Names.keys(self._names.digests(hashes), [self.tag])

    def fits(self, value: memoryview) -> bool:
        """Whether a value is no larger than a slot."""
        return len(value) + TRAILER_BYTES <= self._slots.nbytes


def _job(move: Move, keys: Sequence[bytes], values: Sequence[memoryview]) -> Job:
    return lambda ticket: move(ticket, keys, values), len(keys)


def bytes_of(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous CPU tensor, writable, as long as the caller keeps the tensor."""
    nbytes = tensor.numel() * tensor.element_size()
    return memoryview((ctypes.c_char * nbytes).from_address(tensor.data_ptr())).cast("B")
