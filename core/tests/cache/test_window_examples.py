"""Worked examples of windows in a tree, with token numbers: what stays usable, what goes, what travels.

They are those that a tree with whole-node tombstones was seen to do; ours keeps presence by page. Where it does better
on purpose, the example says so. `freed`: below it the request had let go of its window pages before it published.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import pytest

from stepwell.abc.retain import RetentionPolicy
from stepwell.cache.audit import nodes
from stepwell.cache.keys import page_digests
from stepwell.types import DIGEST_BYTES, DONE, MISSING, Full, Tier, Window

NAMESPACE = bytes(32)


def tokens(values):
    return array("i", values).tobytes()


class Every(RetentionPolicy):
    """All lengths stay restorable, as where a tree keeps every page that it ever had."""

    def keep(self, length: int, page: int, branches: Sequence[int]) -> Sequence[int]:
        return range(page, length + 1, page)


def hybrid(desk, window, page=1, **settings):
    return desk(page=page, needs=(Full(), Window(window)), **{"device": 200, **settings})


def insert(d, prompt, freed=0):
    """A request that ends at its prompt, and whose window pages below `freed` are not there any more."""
    prompt = [*prompt]
    lease = d.admit(prompt)
    window = d.cache.shape.groups[1].need.tokens
    d.cache.trim(lease, freed + -(-max(window, d.page) // d.page) * d.page)
    assert not freed or lease.trimmed[1] * d.page == freed
    d.cache.publish(lease, tokens(prompt), final=True)
    d.cache.close(lease)
    d.cache.audit()


def found(d, *lengths):
    """What is usable of the prompt's first so many tokens; one more follows, which is left to compute."""
    return [d.cache.probe(NAMESPACE, tokens([*range(length), 10**6])) for length in lengths]


def taken(d, group):
    usage = d.device(group)
    return usage.total - usage.free


def loads(lease, groups=2):
    pages = [0] * groups
    for copy in lease.loads:
        pages[copy.group] += len(copy.device)
    return pages


# region: on device


def test_example_A(desk):
    d = hybrid(desk, 4)
    insert(d, range(12))
    assert found(d, 12, 11, 8, 3) == [12, 11, 8, 3]


def test_example_B(desk):
    d = hybrid(desk, 4)
    insert(d, range(20), freed=14)
    assert found(d, 20, 19, 18, 17, 14, 13) == [20, 19, 18, 0, 0, 0]


def test_example_C(desk):
    d = hybrid(desk, 4)
    insert(d, range(20), freed=14)
    full = d.match(range(20)).device[0].tolist()
    before = taken(d, 0), taken(d, 1)
    insert(d, range(16))
    assert found(d, *range(21)) == [*range(21)]
    # Only its window pages are adopted. The full pages that the tree has win over the newcomer's, so that nobody who
    # reads them has to be told.
    assert d.match(range(20)).device[0].tolist() == full
    assert (taken(d, 0), taken(d, 1)) == (before[0], before[1] + 14)


def test_example_D(desk):
    d = hybrid(desk, 4)
    insert(d, range(20), freed=14)
    before = taken(d, 0), taken(d, 1)
    insert(d, range(16), freed=10)
    assert found(d, 20, 14, 13) == [20, 14, 0]
    assert (taken(d, 0), taken(d, 1)) == (before[0], before[1] + 4)


def test_example_E(desk):
    d = hybrid(desk, 4)
    insert(d, range(16))
    slow = d.admit(range(20))
    assert slow.cached.total == 16
    insert(d, range(20))
    kept = [table[:16].tolist() for table in slow.tables]
    free = d.device(0).free, d.device(1).free
    d.cache.publish(slow, tokens(range(20)), final=True)
    d.cache.audit()
    assert (d.device(0).free, d.device(1).free) == (free[0] + 4, free[1] + 4), "only the four fresh pages went"
    assert [table[:16].tolist() for table in slow.tables] == kept
    d.cache.close(slow)


def test_example_F(desk):
    d = hybrid(desk, 4)
    insert(d, range(8), freed=8)
    assert found(d, 8) == [0]
    assert (taken(d, 0), taken(d, 1)) == (8, 0)
    assert d.cache._evictor.evict(0, 1, 4) == 0
    # Pages leave one by one, deepest first, not the whole node at once.
    assert d.cache._evictor.evict(0, 0, 4) == 4 and taken(d, 0) == 4
    assert d.cache._evictor.evict(0, 0, 100) == 4
    assert not list(nodes(d.cache._index))


def test_example_G(desk):
    d = hybrid(desk, 4)
    insert(d, range(12))
    # The window is kept at 12 and, for the same prompt again, at 11: [7, 12) stays while the seven dead pages go.
    assert d.cache._evictor.evict(0, 1, 7) == 7
    assert found(d, 12, 11, 10, 7) == [12, 11, 0, 0]
    assert d.cache._evictor.evict(0, 1, 1) == 1
    assert found(d, 12)[0] < 12


def test_example_H(desk):
    d = hybrid(desk, 4)
    insert(d, range(12))
    lease = d.admit(range(13), 12)
    assert (d.device(0).held, d.device(1).held, d.device(1).tree_only) == (12, 4, 8)
    assert d.cache._evictor.evict(0, 1, 100) == 8
    assert d.cache._evictor.evict(0, 0, 100) == 0
    d.cache.audit()
    assert found(d, 12) == [12]
    # Going on, the request lets go of the window by itself, and of nothing else.
    assert d.cache.extend(lease, 16)
    d.cache.trim(lease, 16)
    assert (d.device(0).held, d.device(1).held) == (16, 4)
    assert d.cache._evictor.evict(0, 1, 100) == 4 and d.device(0).tree_only == 0
    d.cache.close(lease)
    d.cache.audit()


def test_example_I(desk):
    d = hybrid(desk, 16)
    insert(d, range(12))
    lease = d.admit(range(13), 12)
    assert d.device(1).held == 12, "a prefix shorter than the window is held whole"
    d.cache.close(lease)
    assert d.device(1).held == d.device(0).held == 0


def test_example_J(desk):
    d = hybrid(desk, 4)
    insert(d, range(12))
    lease = d.admit(range(13), 12)
    before = d.cache.usage()
    assert found(d, 10) == [10]
    assert d.cache.usage() == before and len(list(nodes(d.cache._index))) == 1, "a match splits nothing"
    insert(d, [*range(10), 77])
    assert (d.device(0).held, d.device(1).held) == (12, 4), "a split moves no hold"
    assert d.cache._evictor.evict(0, 1, 100) > 0
    assert found(d, 12) == [12]
    d.cache.close(lease)
    d.cache.audit()
    assert d.device(0).held == d.device(1).held == 0


def test_example_K(desk):
    d = hybrid(desk, 4)
    insert(d, range(12))
    insert(d, [*range(8), *range(50, 54)])
    before = taken(d, 0), taken(d, 1)
    assert d.cache._evictor.evict(0, 0, 1) == 1
    # One page of the older branch, with the window page at the same place, not the whole of its node.
    assert (taken(d, 0), taken(d, 1)) == (before[0] - 1, before[1] - 1)
    assert found(d, 12) == [11]
    assert d.cache._evictor.evict(0, 0, 3) == 3
    assert (taken(d, 0), taken(d, 1)) == (before[0] - 4, before[1] - 4)
    assert d.match([*range(8), *range(50, 54), 1]).length == 12
    d.cache.audit()


def test_example_L(desk):
    d = hybrid(desk, 4)
    insert(d, range(20), freed=16)
    assert found(d, 10) == [0]
    insert(d, [*range(10), *range(70, 80)])
    assert found(d, 6, 7, 8, 9, 10) == [6, 7, 8, 9, 10]
    assert found(d, 20) == [20]
    d.cache._evictor.evict(0, 1, 10)
    assert d.match([*range(10), *range(70, 80), 1]).length == 20, "what no end needs went first"


def test_example_T(desk):
    d = hybrid(desk, 4)
    insert(d, range(20), freed=14)
    lease = d.admit(range(21), 20)
    held = [table[:20].tolist() for table in lease.tables]
    before = taken(d, 0), taken(d, 1)
    insert(d, range(16))
    assert [table[:20].tolist() for table in lease.tables] == held, "nothing that a running request reads changes"
    assert (taken(d, 0), taken(d, 1)) == (before[0], before[1] + 14)
    assert found(d, *range(21)) == [*range(21)]
    d.cache.close(lease)
    d.cache.audit()


def test_example_U(desk):
    d = hybrid(desk, 2, page=4)
    insert(d, range(20), freed=16)
    assert found(d, 20, 19, 16) == [20, 0, 0]


def test_example_V(desk):
    d = hybrid(desk, 100)
    insert(d, range(8))
    assert found(d, 8, 5, 1) == [8, 5, 1]
    d = hybrid(desk, 100)
    lease = d.admit(range(102))
    d.cache.trim(lease, 102)
    d.cache.publish(lease, tokens(range(8)))
    d.cache.close(lease)
    assert found(d, *range(1, 9)) == [0] * 8, "six pages of a window that reaches the root, and two are gone"


@pytest.mark.parametrize("pages", [1, 3, 100])
def test_example_W(desk, pages):
    d = hybrid(desk, 6)
    insert(d, range(4))
    lease = d.admit(range(5), 4)
    insert(d, range(6))
    insert(d, range(10))
    full = taken(d, 0)
    freed = d.cache._evictor.evict(0, 1, pages)
    assert freed == min(pages, 6), "all but the four that are held"
    # Pressure on the window's pool never takes full pages, not even where a leaf has no window left.
    assert taken(d, 0) == full
    d.cache.close(lease)
    d.cache.audit()


# endregion

# region: host and storage


def test_example_M(desk):
    d = hybrid(desk, 4, host=100)
    insert(d, range(12))
    assert d.save() == 12 + 5, "of the window only what the ends at 12 and 11 need"
    d.evict()
    match = d.match(range(13))
    assert (match.length, match.device_length) == (12, 0)
    lease = d.admit(range(13))
    assert loads(lease) == [12, 4]
    d.load(lease)
    d.cache.close(lease)
    match = d.match(range(13))
    assert (match.length, match.device_length) == (12, 12)
    assert d.match(range(9)).device_length == 0, "below the window nothing came back"


def test_example_M2(desk):
    d = hybrid(desk, 4, host=100, retain=Every())
    insert(d, range(12))
    assert d.save() == 24
    d.evict()
    lease = d.admit([*range(11), 99])
    # Only the window before 11 is loaded, though a node holds more of it on host.
    assert lease.cached.host == 11 and loads(lease) == [11, 4]
    assert len(list(nodes(d.cache._index))) == 1
    d.load(lease)
    d.cache.close(lease)


def test_example_N(desk):
    d = hybrid(desk, 4, host=100, retain=Every())
    insert(d, range(12))
    d.save()
    d.cache._evictor.evict(0, 1, 100)
    match = d.match([*range(6), 99])
    assert (match.length, match.device_length) == (6, 0)
    lease = d.admit([*range(6), 99])
    assert loads(lease) == [0, 4], "the full pages are on device, and of the window four are needed"
    d.load(lease)
    d.cache.close(lease)
    assert d.match([*range(6), 99]).device_length == 6


def test_example_P(desk):
    d = hybrid(desk, 4, host=100)
    insert(d, range(20), freed=14)
    assert d.save() == 20 + 5
    d.evict()
    lease = d.admit(range(21))
    assert loads(lease) == [20, 4]
    d.load(lease)
    d.cache.close(lease)


def fetched(desk, prompt, **settings):
    """An empty cache beside a storage that holds a prompt, window 6 and page 4."""
    storage: dict[bytes, int] = {}
    first = hybrid(desk, 6, page=4, host=100, storage=storage, **settings)
    insert(first, prompt)
    first.save()
    first.store()
    return hybrid(desk, 6, page=4, host=100, storage=storage, **settings), storage


def test_example_Q(desk):
    d, storage = fetched(desk, range(20))
    assert len(storage) == 5 + 3, "the windows at 20 and at 16: pages 2, 3 and 4"
    op = d.fetch(range(21))
    assert d.fetched(op) == 20
    assert found(d, 20) == [20]
    d, _ = fetched(desk, range(20))
    # The same prompt again may use 19 tokens, 16 in whole pages: its window is in storage, too.
    op = d.fetch(range(20))
    assert d.fetched(op) == 16
    assert d.match(range(20)).length == 16


def test_example_Q2(desk):
    d, _ = fetched(desk, range(20))
    op = d.fetch(range(21))
    results = []
    came = {0: set(range(5)), 1: set()}
    for group, keys, _ in op.reads:
        pages = [op.plan.pages[group][op.plan.keys[group].index(key)] for key in keys]
        results.append([MISSING if group and page == 4 else DONE for page in pages])
        if group:
            came[1] |= {page for page in pages if page != 4}
    length = d.cache.fetched(op, results)
    d.cache.audit()
    # Without the last page of its window 20 is lost; 16 is not where the window one page below was read, too.
    assert length == max(e for e in (0, 16) if {*range(max(0, e - 6) // 4, e // 4)} <= came[1])
    assert found(d, 20) == [length]
    assert d.host(0).tree_only == length // 4 and d.host(0).held == d.host(1).held == 0


def test_example_Q3(desk):
    d, _ = fetched(desk, range(4))
    op = d.fetch(range(5))
    assert d.fetched(op) == 4
    assert found(d, 4) == [4], "a prefix shorter than the window needs no more than itself"


def test_example_R(desk):
    _, storage = fetched(desk, range(22))
    chain = page_digests(NAMESPACE, tokens(range(20)), 4)
    digests = [chain[at : at + DIGEST_BYTES] for at in range(0, len(chain), DIGEST_BYTES)]
    groups = {key[DIGEST_BYTES:] for key in storage}
    assert len(groups) == 2
    held = sorted([digests.index(key[:DIGEST_BYTES]) for key in storage if key[DIGEST_BYTES:] == tag] for tag in groups)
    assert sorted(held[0]) == [0, 1, 2, 3, 4], "one chain of digests names both groups' pages"
    assert held[1] == [3, 4], "of the window what 20 needs, and no page below, for 22 is no page multiple"


# endregion


def test_the_groups_of_all_examples_are_left_clean(desk):
    d = hybrid(desk, 4, host=100)
    for freed in (0, 4, 8):
        insert(d, range(freed, freed + 12), freed=freed)
    d.save()
    d.cache.flush()
    d.cache.audit()
    assert all(usage.free == usage.total for tier in (Tier.DEVICE, Tier.HOST) for usage in d.cache.usage()[tier])
