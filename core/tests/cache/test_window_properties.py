"""What any cache with windows has to hold, whatever the sizes of pages and windows; numbered, as a list to check.

1   pages conserved: `cache.audit()` after every operation here, and `World.sound` in test_machine.py.
2   full and window slots mapped to each other: no such map; every group has page ids of its own.
3   here, and test_match.py for the rule alone.
4   right data: test_machine.py knows what every page on device, on host and in storage holds, and copies move it; every
    match, admission, load and visible page is compared. test_window_engine.py does so with the pages a runner reads.
5-11, 13, 14  here.
12  full pages carry the others: `cache.audit()` lets no node lack a full page on both tiers, nor have one on device
    behind one that is not. A window page on device may lie by a full page on host: presence is by page and tier.
15  copies in flight: test_machine.py compares source and target at the end of each; b045, b068, b070 in
    test_window_cases.py.
16, 17  test_tier_agreement.py.
18  here for the cache; the queue before it in test_window_engine.py.
19  here, test_window_cases.py (b023), and the tests of each retention policy.
20  draft keys: there are none; a surplus sampled token is never published (test_window_engine.py runs at depth 3).
21  test_window_twin.py.
"""

from __future__ import annotations

from array import array

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepwell.cache.audit import nodes
from stepwell.cache.chain import digests as digests_of
from stepwell.cache.groups import Geometry
from stepwell.types import Chunked, Full, Tier, Window

NAMESPACE = bytes(32)
RARE = 10**6
PAGES = st.sampled_from((1, 4, 16))
often = settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))


def tokens(values):
    return array("i", values).tobytes()


def windows(page):
    """Windows smaller than a page, as large, larger, the least, and one longer than any prompt."""
    sizes = (1, max(1, page - 1), page, page + 1, 3 * page, 2 * page + 3, 1000)
    return st.sampled_from(sizes).map(Window)


def mixes(page):
    """Groups of two, three, and only windows; the first is full where any is."""
    chunked = st.sampled_from((2 * page, 2 * page + 1, 3)).map(Chunked)
    return st.one_of(
        st.tuples(st.just(Full()), windows(page)),
        st.tuples(st.just(Full()), windows(page), chunked),
        st.tuples(windows(page)),
        st.tuples(windows(page), chunked),
    )


def prompts(page, least=1, most=7):
    return st.lists(st.integers(0, 1), min_size=least * page, max_size=most * page)


def run(d, prompt, freed=0, chunk=10**9, final=True):
    """A request whose window pages below the length `freed` are gone where they can be before it publishes."""
    lease = d.admit(prompt)
    assert lease is not None
    d.load(lease)
    if freed:
        d.cache.trim(lease, min(freed, len(prompt)))
    for end in [*range(chunk, len(prompt), chunk), len(prompt)]:
        d.cache.publish(lease, tokens(prompt[:end]), final=final and end == len(prompt))
        d.cache.audit()
    d.cache.close(lease)
    d.cache.audit()


def held(d, prompt):
    """Per group and page of a prompt, as far as the tree goes: its ids on device and host, -1 where absent."""
    index = d.cache._index
    root = index.roots.get(NAMESPACE)
    table = [[] for _ in d.cache.shape.groups]
    if root is None:
        return table
    _, node, at, inside = index.walk(root, tokens(prompt))
    reached = at // index.step
    for part in index.path(inside or node, root):
        for group, entries in enumerate(table):
            found = part.runs[group]
            for at in range(min(part.pages, reached - part.first)):
                entries.append(
                    (-1, -1) if found is None else tuple(int(found.ids(tier, part.pages)[at]) for tier in (0, 1))
                )
    return table


def usable(d, prompt, length, tiers=(0, 1)):
    """The longest usable length at most `length`, by trying each."""
    table = held(d, prompt)
    page = d.page
    for pages in range(min(length // page, min(len(entries) for entries in table)), 0, -1):
        if all(
            any(entries[at][tier] >= 0 for tier in tiers)
            for entries, spec in zip(table, d.cache.shape.groups, strict=True)
            for at in range(spec.need.lo(pages * page) // page, pages)
        ):
            return pages * page
    return 0


def found(d, prompt):
    return [d.cache.probe(NAMESPACE, tokens([*prompt[:length], RARE])) for length in range(len(prompt) + 1)]


def lived(data, d, page, count=4, evict=True):
    """Some requests with shared prefixes, and what pressure leaves of them; answers the prompts."""
    stem = data.draw(prompts(page, least=2))
    told = []
    for _ in range(data.draw(st.integers(1, count))):
        cut = data.draw(st.integers(1, len(stem)))
        prompt = [*stem[:cut], *data.draw(prompts(page, least=0, most=2))]
        run(
            d, prompt, freed=data.draw(st.integers(0, len(prompt))), chunk=data.draw(st.sampled_from((1 + page, 10**9)))
        )
        told.append(prompt)
        if data.draw(st.booleans()):
            d.save()
        if evict and data.draw(st.booleans()):
            press(data, d)
    return told


def press(data, d):
    tier, group = data.draw(st.integers(0, 1)), data.draw(st.integers(0, len(d.cache.shape.groups) - 1))
    pool = d.cache._pools[tier][group]
    if pool.total:
        pages = data.draw(st.integers(1, 12))
        able = min(pages, pool.available() - pool.free)
        assert d.cache._evictor.evict(tier, group, pages) >= able, "less than there was to take"
        d.cache.audit()


def ended(d):
    d.cache.flush()
    d.cache.audit()
    assert all(usage.free == usage.total for tier in (Tier.DEVICE, Tier.HOST) for usage in d.cache.usage()[tier])


@given(st.data(), PAGES)
@often
def test_property_03_a_match_is_what_trying_every_length_finds(desk, data, page):
    d = desk(page=page, needs=data.draw(mixes(page)), device=300, host=data.draw(st.sampled_from((0, 300))))
    for prompt in lived(data, d, page):
        assert found(d, prompt) == [usable(d, prompt, length) for length in range(len(prompt) + 1)]
        match = d.match([*prompt, RARE])
        assert match.device_length == usable(d, prompt, match.length, tiers=(0,))
    ended(d)


@given(st.data(), PAGES)
@often
def test_property_05_the_cursor_only_rises(desk, data, page):
    needs = data.draw(mixes(page))
    d = desk(page=page, needs=needs, device=300)
    run(d, data.draw(prompts(page)))
    prompt = data.draw(prompts(page, least=4))
    lease = d.admit(prompt, 0)
    shared = held(d, prompt[: lease.cached.total])
    cursor = [*lease.trimmed]
    done = lease.cached.total
    while done < len(prompt):
        done = min(len(prompt), done + data.draw(st.integers(1, 2 * page)))
        assert d.cache.extend(lease, done)
        if data.draw(st.booleans()):
            d.cache.publish(lease, tokens(prompt[:done]))
        d.cache.trim(lease, done)
        d.cache.trim(lease, max(1, done - page))
        d.cache.audit()
        assert all(now >= was for now, was in zip(lease.trimmed, cursor, strict=True))
        cursor = [*lease.trimmed]
        whole = done // page * page
        for need, first in zip(needs, cursor, strict=True):
            if isinstance(need, Window) and first > need.lo(lease.cached.total) // page:
                assert whole - first * page >= need.tokens
            assert first <= need.lo(whole) // page
    assert held(d, prompt[: lease.cached.total]) == shared, "pages of the tree are not the request's to free"
    d.cache.close(lease)
    again = d.admit([*prompt, RARE], 0)
    assert again.trimmed == [need.lo(again.cached.total) // page for need in needs], "a new start, a new cursor"
    d.cache.close(again)
    ended(d)


@given(st.data(), PAGES)
@often
def test_property_06_what_was_let_go_of_does_not_come_back(desk, data, page):
    d = desk(page=page, needs=data.draw(mixes(page)), device=300)
    told = lived(data, d, page)
    prompt = [*data.draw(st.sampled_from(told)), *data.draw(prompts(page, least=0, most=3))]
    lease = d.admit(prompt)
    d.cache.trim(lease, data.draw(st.integers(0, len(prompt))))
    cursor = lease.trimmed
    before = held(d, prompt)
    d.cache.publish(lease, tokens(prompt), final=True)
    after = held(d, prompt)
    for was, now, first in zip(before, after, cursor, strict=True):
        old = [entry[0] for entry in was[:first]]
        assert [entry[0] for entry in now[:first]] == old + [-1] * (min(first, len(now)) - len(old))
    d.cache.close(lease)
    ended(d)


@given(st.data(), PAGES)
@often
def test_property_07_each_page_has_one_fate(desk, data, page):
    """Of those who compute the same at once the first to publish gives its pages, the others' are free again."""
    d = desk(page=page, needs=data.draw(mixes(page)), device=300)
    prompt = data.draw(prompts(page, least=3))
    racers = [(d.admit(prompt), [0]) for _ in range(3)]
    for _ in range(12):
        lease, done = data.draw(st.sampled_from(racers))
        done[0] = min(len(prompt), done[0] + data.draw(st.integers(1, 3 * page)))
        before = held(d, prompt)
        d.cache.publish(lease, tokens(prompt[: done[0]]))
        if data.draw(st.booleans()):
            d.cache.trim(lease, done[0])
        d.cache.audit()
        for was, now in zip(before, held(d, prompt), strict=True):
            for old, new in zip(was, now, strict=False):
                assert old[0] in (-1, new[0]), "a page of the tree was taken for another"
        for group, entries in enumerate(held(d, prompt)):
            for at in range(lease.trimmed[group], min(lease.published, len(entries))):
                assert lease.tables[group][at] == entries[at][0], "published, and not the tree's"
    for lease, _ in racers:
        d.cache.close(lease)
    for group, entries in enumerate(held(d, prompt)):
        assert d.device(group).tree_only == sum(entry[0] >= 0 for entry in entries)
        assert d.device(group).free + d.device(group).tree_only == 300
    ended(d)


@given(st.data(), PAGES)
@often
def test_property_08_10_nothing_that_a_request_reads_changes_or_goes(desk, data, page):
    needs = data.draw(mixes(page))
    d = desk(page=page, needs=needs, device=300, host=300)
    told = lived(data, d, page)
    prompt = [*data.draw(st.sampled_from(told)), RARE]
    lease = d.admit(prompt, 0)
    d.load(lease)
    lease.edits.clear()
    end = lease.cached.total
    for table, first, need in zip(lease.tables, lease.trimmed, needs, strict=True):
        pinned = int((table >= 0).sum())
        assert first == need.lo(end) // page and pinned == end // page - first
        assert pinned * page < end - need.lo(end) + page, "a page or more beyond what is needed"
    tables = [table.tolist() for table in lease.tables]
    for _ in range(3):
        other = data.draw(st.sampled_from(told))
        cut = data.draw(st.integers(0, len(other)))
        run(d, [*other[:cut], *data.draw(prompts(page, most=2))], freed=data.draw(st.integers(0, cut)))
        press(data, d)
    d.evict()
    assert [table.tolist() for table in lease.tables] == tables and not lease.edits
    assert d.match(prompt).device_length >= end
    d.cache.close(lease)
    ended(d)


@given(st.data(), PAGES)
@often
def test_property_09_to_hold_and_let_go_leaves_no_trace(desk, data, page):
    d = desk(page=page, needs=data.draw(mixes(page)), device=300)
    told = lived(data, d, page)
    before, answers = d.cache.usage(), [found(d, prompt) for prompt in told]
    leases = []
    for prompt in told:
        for _ in range(2):
            cut = data.draw(st.integers(1, len(prompt)))
            leases.append(d.admit([*prompt[:cut], RARE], 0))
    for lease in data.draw(st.permutations(leases)):
        d.cache.close(lease)
        d.cache.audit()
    assert d.cache.usage() == before
    assert [found(d, prompt) for prompt in told] == answers
    leases = [d.admit([*prompt, RARE], 0) for prompt in told]
    run(d, [*told[0][: len(told[0]) // 2], 7])
    d.evict()
    for lease in data.draw(st.permutations(leases)):
        d.cache.close(lease)
        d.cache.audit()
    assert all(usage.held == 0 for usage in d.cache.usage()[Tier.DEVICE])
    ended(d)


@given(st.data(), PAGES)
@often
def test_property_11_windows_go_alone_and_as_many_as_asked(desk, data, page):
    needs = (Full(), *data.draw(st.lists(windows(page), min_size=1, max_size=2)))
    d = desk(page=page, needs=needs, device=300, host=data.draw(st.sampled_from((0, 300))))
    lived(data, d, page, evict=False)
    for _ in range(4):
        tier = data.draw(st.integers(0, 1))
        group = data.draw(st.integers(1, len(needs) - 1))
        pages = data.draw(st.integers(1, 9))
        others = [pool.free for pools in d.cache._pools for pool in pools]
        pool = d.cache._pools[tier][group]
        able = min(pages, pool.available() - pool.free)
        assert d.cache._evictor.evict(tier, group, pages) == able
        d.cache.audit()
        others[tier * len(needs) + group] += able
        assert [pool.free for pools in d.cache._pools for pool in pools] == others
    ended(d)


@given(st.data(), PAGES)
@often
def test_property_13_a_split_changes_no_answer(desk, data, page):
    d = desk(page=page, needs=data.draw(mixes(page)), device=300, host=300)
    told = lived(data, d, page)
    index = d.cache._index

    def state():
        pages = [held(d, prompt) for prompt in told]
        chain = {
            (digests_of(node, page)[32 * at : 32 * at + 32], group, kept)
            for node in nodes(index)
            for group, part in enumerate(node.runs)
            for at, kept in enumerate(b"" if part is None else part.kept or bytes(node.pages))
            if kept
        }
        return pages, chain, [found(d, prompt) for prompt in told], d.cache.usage()

    before = state()
    for _ in range(4):
        long = [node for node in nodes(index) if node.pages > 1]
        if not long:
            break
        node = long[data.draw(st.integers(0, len(long) - 1))]
        index.split(node, data.draw(st.integers(1, node.pages - 1)))
        d.cache.audit()
        assert state() == before
    press(data, d)
    ended(d)


@given(st.data(), PAGES)
@often
def test_property_14_a_load_moves_what_is_missing_and_nothing_else(desk, data, page):
    needs = data.draw(mixes(page))
    d = desk(page=page, needs=needs, device=300, host=300)
    told = lived(data, d, page)
    d.save()
    for _ in range(3):
        press(data, d)
    prompt = [*data.draw(st.sampled_from(told)), RARE]
    end = usable(d, prompt, len(prompt))
    table = held(d, prompt)
    missing = [
        [at for at in range(need.lo(end) // page, end // page) if entries[at][0] < 0]
        for entries, need in zip(table, needs, strict=True)
    ]
    lease = d.admit(prompt, 0)
    assert lease.cached.total == end
    moved = [[] for _ in needs]
    for copy in lease.loads:
        moved[copy.group] += copy.host.tolist()
    assert moved == [[entries[at][1] for at in pages] for entries, pages in zip(table, missing, strict=True)]
    before = d.cache.usage()[Tier.DEVICE]
    fate = data.draw(st.sampled_from(("comes", "fails", "comes late")))
    if fate == "comes late":
        d.cache.close(lease)
    for copy in lease.loads:
        ok = fate != "fails"
        assert d.cache.loaded(lease, copy, [ok] * len(copy.device)) == ok
    d.cache.close(lease)
    d.cache.audit()
    for group, (was, now) in enumerate(zip(before, d.cache.usage()[Tier.DEVICE], strict=True)):
        assert now.held == 0
        come = len(missing[group]) if fate != "fails" else 0
        assert now.tree_only <= was.tree_only + was.held - len(missing[group]) + come
    if fate == "fails":
        if lease.loads:
            assert found(d, prompt)[end] < end, "what did not come is taken for damaged, and is not found again"
        return ended(d)
    again = d.admit(prompt, 0)
    assert again.cached.total == end and not again.loads, "all is there now"
    d.cache.close(again)
    return ended(d)


@given(st.data(), PAGES)
@often
def test_property_18_what_fits_runs_in_no_more_than_it_is_said_to_need(desk, data, page):
    needs = data.draw(mixes(page))
    prompt = data.draw(prompts(page, most=9))
    answer = data.draw(prompts(page, least=0, most=4))
    length = max(len(prompt), len(prompt) + len(answer) - 1)
    probe = desk(page=page, needs=needs)
    pools = tuple(group.runs_in(length) for group in Geometry.of(probe.cache.shape.groups, page).groups)
    d = desk(page=page, needs=needs, device=pools)
    assert d.cache.fits(length) and d.cache.largest() >= length
    for _ in range(2):
        d.serve(prompt, answer, chunk=page)
        d.serve([RARE, *prompt[1:]], answer, chunk=page)
    ended(d)


@given(st.data(), PAGES)
@often
def test_property_19_the_end_and_one_page_below_stay_restorable(desk, data, page):
    """In whatever chunks a prompt came, and with nothing left but what the ends need."""
    needs = data.draw(mixes(page))
    d = desk(page=page, needs=needs, device=300)
    told = []
    for number in range(3):
        prompt = [number, *data.draw(prompts(page, least=3))]
        prompt = prompt[: len(prompt) // page * page]
        d.serve(prompt, chunk=data.draw(st.integers(1, len(prompt))))
        told.append(prompt)
    for group, need in enumerate(needs):
        if isinstance(need, Full):
            continue
        kept = sum(
            sum(part.kept) for node in nodes(d.cache._index) if (part := node.runs[group]) is not None and part.kept
        )
        idle = d.device(group).tree_only - kept
        if idle:
            assert d.cache._evictor.evict(0, group, idle) == idle
    d.cache.audit()
    for prompt in told:
        ends = [len(prompt) - page, len(prompt)]
        assert [found(d, prompt)[end] for end in ends if end] == [end for end in ends if end]
    ended(d)
