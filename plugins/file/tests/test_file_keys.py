"""One folder, many models, adapters and sessions: nobody reads another's pages."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from stepwell import DONE, Full, GroupSpec, PageKey
from stepwell.cache.keys import namespace, page_digests, page_keys
from stepwell_file import FileConfig
from stepwell_file.store import FileStorage
from stepwell_testkit import KitContext
from stepwell_testkit.arena import KitArena

PAGE = 4
TOKENS = np.arange(1, 33, dtype=np.int32).tobytes()
GROUP = GroupSpec("full", Full(), 1024, (0, 1))
PARTS = {"model": "weights a", "dtype": "float16", "layout": "page-first", "page_size": "4"}


@pytest.fixture
def storage(tmp_path: Path, context: KitContext) -> Iterator[FileStorage]:
    storage = FileStorage(FileConfig(tmp_path / "pages", gib=1 / 64, min_free_gib=0), context)
    yield storage
    storage.close()


def keys(group: GroupSpec = GROUP, tokens: bytes = TOKENS, **parts: str) -> tuple[PageKey, ...]:
    return page_keys(page_digests(namespace({**PARTS, **parts}), tokens, PAGE), group)


def put(storage: FileStorage, asked: tuple[PageKey, ...], fill: int, size: int) -> None:
    arena = KitArena(size, len(asked))
    arena.paint(fill)
    assert set(storage.write(asked, arena.views(range(len(asked))))) == {DONE}


def hits(storage: FileStorage, asked: tuple[PageKey, ...], fill: int, size: int) -> int:
    arena = KitArena(size, len(asked))
    results = storage.read(asked, arena.views(range(len(asked))))
    for slot, result in enumerate(results):
        assert result != DONE or arena.page(slot) == bytes([fill]) * size
    return sum(result == DONE for result in results)


def test_b059_another_type_layout_or_weights_gets_no_page(storage: FileStorage) -> None:
    size = GROUP.token_bytes * PAGE
    put(storage, keys(), 1, size)
    half = replace(GROUP, token_bytes=GROUP.token_bytes // 2)
    assert hits(storage, keys(half, dtype="float8"), 1, size // 2) == 0
    assert hits(storage, keys(), 1, size // 2) == 0, "nor under the same key in another size"
    assert hits(storage, keys(layout="layer-first"), 1, size) == 0
    assert hits(storage, keys(model="weights b"), 1, size) == 0
    assert hits(storage, keys(), 1, size) == 8


def test_b060_adapters_and_salts_share_no_page(storage: FileStorage) -> None:
    size = GROUP.token_bytes * PAGE
    put(storage, keys(adapter="a"), 1, size)
    others: list[dict[str, str]] = [{"adapter": "b"}, {}, {"salt": "s"}]
    assert [hits(storage, keys(**parts), 1, size) for parts in others] == [0, 0, 0]
    assert hits(storage, keys(adapter="a"), 1, size) == 8
    assert keys(tokens=TOKENS[:12]) == (), "a prompt shorter than a page has no key"


def test_b085_sessions_that_return_get_their_own_pages(storage: FileStorage) -> None:
    """Twelve sessions of more pages than the folder holds, over and over; what is there is the session's own."""
    size = 256 * 1024
    found = 0
    sessions: list[tuple[PageKey, ...]] = [keys(salt=str(number)) for number in range(12)]
    for _ in range(3):
        for number, session in enumerate(sessions):
            found += hits(storage, session, number + 1, size)
            put(storage, session, number + 1, size)
            assert hits(storage, session, number + 1, size) >= 1
    assert storage.usage().pages * size <= storage.usage().limit_bytes
    assert found < 3 * 12 * 8


def test_a_session_that_is_used_stays_while_others_pass(storage: FileStorage) -> None:
    size = 64 * 1024
    put(storage, keys(salt="kept"), 7, size)
    for number in range(60):
        put(storage, keys(salt=str(number)), 1, size)
        hits(storage, keys(salt="kept"), 7, size)
        storage._retirer.close()  # writing at full speed would overtake the second chance
    assert hits(storage, keys(salt="kept"), 7, size) == 8
