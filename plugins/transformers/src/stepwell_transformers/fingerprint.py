"""A name for what a model computes: it differs wherever a weight or the architecture does."""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

BLOCK = 1 << 24


def fingerprint(folder: Path, cache: Path) -> str:
    """Hash of a folder's config and of every byte of its weights.

    A file's hash is kept in `cache` for as long as path, size, time of change and inode stay the same.
    """
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    paths = sorted(folder.glob("*.safetensors"))
    with ThreadPoolExecutor(max_workers=4) as pool:
        hashes = list(pool.map(lambda path: _of_file(path, cache / "digests"), paths))
    for path, found in zip(paths, hashes, strict=True):
        digest.update(f"|{path.name}|{found}".encode())
    return digest.hexdigest()[:32]


def _of_file(path: Path, cache: Path) -> str:
    stat = path.stat()
    key = f"{path.resolve()}|{stat.st_size}|{stat.st_mtime_ns}|{stat.st_ctime_ns}|{stat.st_ino}"
    kept = cache / hashlib.sha256(key.encode()).hexdigest()
    with suppress(OSError):
        known = kept.read_text(encoding="ascii")
        if len(known) == 32:
            return known
    found = _hash(path)
    with suppress(OSError):  # a cache that cannot be written costs the time again, nothing else
        cache.mkdir(parents=True, exist_ok=True)
        temporary = kept.with_name(f"{kept.name}.{os.getpid()}")
        temporary.write_text(found, encoding="ascii")
        temporary.replace(kept)
    return found


def _hash(path: Path) -> str:
    import xxhash

    digest, buffer = xxhash.xxh3_128(), memoryview(bytearray(BLOCK))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
    return digest.hexdigest()
