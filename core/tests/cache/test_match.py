"""One function answers every match: it equals brute force over every length."""

from array import array

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.cache.groups import Geometry
from stepwell.cache.index import Index
from stepwell.cache.match import find, longest, usable
from stepwell.cache.node import DEVICE, HOST, TIERS
from stepwell.cache.pool import Pool
from stepwell.cache.recency import Recency
from stepwell.types import Chunked, Full, GroupSpec, Window

PAGES = st.sampled_from((1, 4, 16))
NAMESPACE = bytes(32)


@st.composite
def needs(draw, page):
    return draw(
        st.one_of(
            st.sampled_from((Window(1), Window(page), Window(max(1, page - 1)), Window(page + 1), Window(10**6))),
            st.builds(Window, st.integers(0, 5 * page)),
            st.builds(Chunked, st.integers(1, 5 * page)),
        )
    )


def flags(length):
    """Which pages are there: any, most, all behind a cut, none but a stretch, three of four, all or none."""
    cut = st.integers(0, length)
    return st.one_of(
        st.lists(st.booleans(), min_size=length, max_size=length),
        st.lists(st.sampled_from((True,) * 9 + (False,)), min_size=length, max_size=length),
        cut.map(lambda low: [at >= low for at in range(length)]),
        st.tuples(cut, cut).map(lambda ends: [min(ends) <= at < max(ends) for at in range(length)]),
        st.integers(0, 3).map(lambda hole: [at % 4 != hole for at in range(length)]),
        st.booleans().map(lambda every: [every] * length),
    )


def brute(groups, page, length, present):
    def whole(pages):
        return all(
            present[g][at] for g, group in enumerate(groups) for at in range(group.need.lo(pages * page) // page, pages)
        )

    return [whole(pages) for pages in range(length + 1)]


def grown(groups, page, sizes, there):
    """A path of nodes of so many pages; `there`: by tier and group which pages are there."""
    length = sum(sizes)
    index = Index(
        Geometry.of(groups, page),
        (tuple(Pool(length) for _ in groups), tuple(Pool(length) for _ in groups)),
        (tuple(Recency() for _ in groups), tuple(Recency() for _ in groups)),
    )
    node, at = index.root(NAMESPACE), 0
    for pages in sizes:
        node = index.add(node, array("i", range(at * page, (at + pages) * page)).tobytes())
        for tier in TIERS:
            for g in range(len(groups)):
                places = np.flatnonzero(there[tier][g][at : at + pages])
                for piece in np.split(places, np.flatnonzero(np.diff(places) > 1) + 1):
                    if len(piece):
                        ids = index.pools[tier][g].allocate(len(piece))
                        index.put(tier, node, g, int(piece[0]), ids, entrust=True)
        at += pages
    return index, node


def ids_of(path, group, tier):
    return np.concatenate(
        [np.full(node.pages, -1) if (run := node.runs[group]) is None else run.ids(tier, node.pages) for node in path]
    )


@given(st.data(), PAGES, st.lists(st.integers(1, 9), min_size=1, max_size=40), st.integers(1, 4))
@settings(max_examples=600, deadline=None)
def test_what_is_found_equals_brute_force_whatever_is_gone_of_either_tier(data, page, sizes, count):
    length = sum(sizes)
    kinds = st.one_of(st.just(Full()), needs(page), needs(page))
    groups = tuple(GroupSpec(f"g{i}", data.draw(kinds), 1, (i,)) for i in range(count))
    there = [[], []]
    for group in groups:
        device, host = data.draw(flags(length)), data.draw(flags(length))
        if isinstance(group.need, Full):
            ahead = data.draw(st.integers(0, length))
            device = [at < ahead for at in range(length)]
            host = [at >= ahead or host[at] for at in range(length)]
        there[DEVICE].append(device)
        there[HOST].append(host)
    index, node = grown(groups, page, sizes, there)
    geometry = index.geometry
    path = index.path(node, index.roots[NAMESPACE])
    leads = [each.lead for each in path]
    asked = data.draw(st.integers(0, length))
    either = [[a or b for a, b in zip(*tiers, strict=True)] for tiers in zip(*there, strict=True)]
    want = {
        load: max(at for at, good in enumerate(brute(groups, page, asked, known)) if good)
        for load, known in ((True, either), (False, there[DEVICE]))
    }
    for load, usable_length in want.items():
        found = find(geometry, leads, node, asked, load=load)
        assert (found.length, found.device_length) == (usable_length, want[False])
        assert found.first == [group.need.lo(usable_length * page) // page for group in groups]
        assert not usable_length or found.node.first < usable_length <= found.node.first + found.node.pages
        for g, first in enumerate(found.first):
            device, host = (ids_of(path, g, tier)[first:usable_length] for tier in TIERS)
            assert found.device[g].tolist() == device.tolist()
            told = found.host[g]
            assert (told is not None) == (-1 in device)
            assert told is None or told.tolist() == np.where(device < 0, host, -1).tolist()


@given(st.data(), PAGES, st.lists(st.integers(1, 9), max_size=30), st.integers(1, 3))
@settings(max_examples=600, deadline=None)
def test_the_longest_usable_length_equals_brute_force(data, page, sizes, count):
    length = sum(sizes)
    groups = tuple(GroupSpec(f"g{i}", data.draw(needs(page)), 1, (i,)) for i in range(count))
    there = [data.draw(flags(length)) for _ in groups]
    good = brute(groups, page, length, there)
    assert (
        usable(Geometry.of(groups, page), length, [(g, bytes(each)) for g, each in enumerate(there)]).tolist() == good
    )
    index, node = grown(groups, page, sizes, (there, [[False] * length] * count))
    for on_host in (False, True):
        assert longest(index.geometry, node, length, on_host)[0] == max(np.flatnonzero(good))


def test_a_match_ends_though_every_group_takes_another_page_back():
    """Windows that fit between different holes: no length but a short one serves all, and it is found at once."""
    page, length = 4, 4000
    groups = tuple(GroupSpec(f"g{i}", Window(2 * page), 1, (i,)) for i in range(4))
    there = [[at < 3 or at % 4 != g for at in range(length)] for g in range(4)]
    index, node = grown(groups, page, [10] * 400, (there, [[False] * length] * 4))
    looks = []
    geometry = index.geometry
    plan = tuple((g, lambda at, first=first: (looks.append(at), first(at))[1]) for g, first in geometry.plan)
    object.__setattr__(geometry, "plan", plan)
    good = brute(groups, page, length, there)
    assert longest(geometry, node, length, False)[0] == max(np.flatnonzero(good)) < 10
    assert len(looks) < 100


@given(PAGES, st.integers(1, 200), st.integers(0, 400))
@settings(max_examples=300, deadline=None)
def test_a_request_keeps_what_its_published_end_needs(page, tokens, length):
    for need in (Full(), Window(tokens), Chunked(tokens)):
        (group,) = Geometry.of((GroupSpec("g", need, 1, (0,)),), page).groups
        keeps = group.keeps_from(length)
        assert keeps <= need.lo(length) // page
        assert keeps <= need.lo(length // page * page) // page
        assert -(-length // page) - keeps <= group.runs_in(length)
        assert group.runs_in(group.longest_in(group.runs_in(length))) <= group.runs_in(length)
