"""Every tier answers alike: what could be continued before its pages went down can be after they came back.

Properties 16 and 17 of the list in test_window_properties.py.
"""

from __future__ import annotations

from array import array

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepwell.abc.retain import RetentionPolicy
from stepwell.builtin.retain import Tail
from stepwell.cache.audit import nodes
from stepwell.cache.groups import Geometry
from stepwell.cache.match import agreed, lengths
from stepwell.types import Chunked, Full, GroupSpec, Tier, Window

NAMESPACE = bytes(32)
RARE = 10**6
often = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


def tokens(values):
    return array("i", values).tobytes()


class Sparse(RetentionPolicy):
    """Every third page, and where paths part; the windows below the end are let go of."""

    def keep(self, length, page, branches):
        return [*branches, length // page * page]

    def along(self, start, end, page, branches):
        return [*branches, *range(-(-(start + 1) // (3 * page)) * 3 * page, end + 1, 3 * page)]


def mixes(page):
    windows = st.sampled_from((1, page, page + 1, 3 * page + 1, 1000)).map(Window)
    chunked = st.sampled_from((2 * page, 3)).map(Chunked)
    return st.one_of(
        st.tuples(st.just(Full()), windows),
        st.tuples(st.just(Full()), windows, chunked),
        st.tuples(windows),
        st.tuples(windows, windows.filter(lambda window: window.tokens > 1)),
    )


def drawn(data, page, least, most):
    return data.draw(st.lists(st.integers(0, 1), min_size=least * page, max_size=most * page))


def told(data, desk, page, **more):
    """A cache that served prompts with shared beginnings, what it is made of, and the prompts."""
    made = {
        "page": page,
        "needs": data.draw(mixes(page)),
        "device": 300,
        "host": 300,
        "retain": data.draw(st.sampled_from((Tail(), Sparse()))),
        **more,
    }
    d = desk(**made)
    stem = drawn(data, page, 3, 7)
    prompts = []
    for _ in range(data.draw(st.integers(1, 3))):
        prompt = [*stem[: data.draw(st.integers(1, len(stem)))], *drawn(data, page, 1, 3)]
        d.serve(prompt, chunk=data.draw(st.sampled_from((page, 2 * page + 1, 10**9))))
        prompts.append(prompt)
    return d, made, prompts


def forget_idle(d):
    """Nothing is left but what a retained length needs."""
    for group, spec in enumerate(d.cache.shape.groups):
        if not isinstance(spec.need, Full):
            runs = [node.runs[group] for node in nodes(d.cache._index)]
            idle = d.device(group).tree_only - sum(sum(run.kept) for run in runs if run is not None)
            assert d.cache._evictor.evict(0, group, idle) == idle
    d.cache.audit()


def restorable(d, prompt):
    """All lengths at which a prompt can be continued; each is one that a request for just that finds."""
    ends = d.cache.restorable(NAMESPACE, tokens([*prompt, RARE]))
    tried = [d.cache.probe(NAMESPACE, tokens([*prompt[:end], RARE])) for end in range(1, len(prompt) + 1)]
    assert list(ends) == sorted({*tried} - {0})
    return ends


@given(st.data(), st.sampled_from((1, 4, 16)))
@often
def test_property_16_host_and_back(desk, data, page):
    d, _, prompts = told(data, desk, page)
    forget_idle(d)
    before = [restorable(d, prompt) for prompt in prompts]
    d.save()
    for _ in range(3):
        group = data.draw(st.integers(0, len(d.cache.shape.groups) - 1))
        d.cache._evictor.evict(0, group, data.draw(st.integers(1, 9)))
        assert [restorable(d, prompt) for prompt in prompts] == before
    d.evict()
    assert [restorable(d, prompt) for prompt in prompts] == before
    for prompt, ends in zip(prompts, before, strict=True):
        for end in data.draw(st.permutations(ends)):
            for asked in (end, end - 1, end - page):
                if asked < 0:
                    continue
                lease = d.admit([*prompt[:asked], RARE], 0)
                assert lease.cached.total == max((each for each in ends if each <= asked), default=0)
                d.load(lease)
                d.cache.close(lease)
                assert d.match([*prompt[:asked], RARE]).device_length == lease.cached.total
    assert [restorable(d, prompt) for prompt in prompts] == before


@given(st.data(), st.sampled_from((1, 4, 16)))
@often
def test_property_16_storage_and_back(desk, data, page):
    storage = {}
    d, made, prompts = told(data, desk, page, storage=storage)
    forget_idle(d)
    before = [restorable(d, prompt) for prompt in prompts]
    d.save()
    d.store()
    d.cache.flush()
    assert not any(restorable(d, prompt) for prompt in prompts)
    for prompt, ends in zip(prompts, before, strict=True):
        for end in ends:
            for asked in (end, end - 1, end - page):
                best = max((each for each in ends if each <= asked), default=0)
                fresh = desk(**made)
                op = fresh.fetch([*prompt[: max(0, asked)], RARE])
                assert (op is None) == (best == 0)
                if op is not None:
                    assert fresh.fetched(op) == best
                    assert fresh.match([*prompt[:asked], RARE]).length == best
                    assert fresh.host(0).held == 0


@given(st.data(), st.sampled_from((1, 4, 16)))
@often
def test_property_16_the_same_prompt_again_after_a_fetch(desk, data, page):
    """A prompt that ends with a page may use a token less than it has, so its window one page below comes with it."""
    needs = data.draw(mixes(page))
    made = {"page": page, "needs": needs, "device": 300, "host": 300, "storage": {}}
    d = desk(**made)
    prompt = drawn(data, page, 2, 8)
    prompt = prompt[: len(prompt) // page * page]
    d.serve(prompt, chunk=data.draw(st.sampled_from((page, 10**9))))
    d.save()
    d.store()
    fresh = desk(**made)
    assert fresh.fetched(fresh.fetch([*prompt, RARE])) == len(prompt)
    assert {len(prompt) - page, len(prompt)} <= {*restorable(fresh, prompt)}
    assert fresh.serve(prompt).total == len(prompt) - page


@pytest.mark.parametrize("needs", [(Full(), Window(5)), (Full(), Chunked(16), Window(3)), (Full(), Window(9))])
def test_one_prompt_takes_of_all_tiers(desk, needs):
    """The head on device, the middle on host, the tail and the windows in storage."""
    d = desk(needs=needs, device=100, host=100, storage={})
    prompt = [*range(52)]
    d.serve(prompt)
    d.save()
    d.store()
    for group, need in enumerate(needs):
        d.cache._evictor.evict(0, group, 7 if isinstance(need, Full) else 100)
        d.cache._evictor.evict(1, group, 4 if isinstance(need, Full) else 100)
    assert d.match([*prompt, RARE]).length == 0
    op = d.fetch([*prompt, RARE])
    read = {group: 0 for group in range(len(needs))}
    for group, keys, _ in op.reads:
        read[group] += len(keys)
    windows = {group: -(-need.tokens // 4) for group, need in enumerate(needs) if isinstance(need, Window)}
    assert read[0] == 4
    assert all(read[group] == pages + 1 for group, pages in windows.items()), "for the page below, too"
    assert d.fetched(op) == 52
    match = d.match([*prompt, RARE])
    assert (match.length, match.device_length) == (52, 0)
    lease = d.admit([*prompt, RARE], 0)
    loaded = {group: 0 for group in range(len(needs))}
    for copy in lease.loads:
        loaded[copy.group] += len(copy.device)
    assert loaded[0] == 7
    assert all(loaded[group] == pages for group, pages in windows.items())
    d.load(lease)
    d.cache.close(lease)
    assert d.match([*prompt, RARE]).device_length == 52
    assert all(usage.held == 0 for tier in (Tier.DEVICE, Tier.HOST) for usage in d.cache.usage()[tier])


@given(st.data(), st.sampled_from((1, 4, 16)), st.integers(1, 4))
@often
def test_property_17_ranks_agree_on_the_lengths_that_all_have(data, page, count):
    needs = data.draw(mixes(page))
    geometry = Geometry.of(tuple(GroupSpec(f"g{i}", need, 8, (i,)) for i, need in enumerate(needs)), page)
    total = data.draw(st.integers(0, 20))
    flags = st.lists(st.sampled_from((True, True, True, False)), min_size=total, max_size=total)
    ranks = [[np.array(data.draw(flags), dtype=np.bool_) for _ in needs] for _ in range(count)]

    def can(rank, pages):
        return all(
            there[at]
            for there, need in zip(rank, needs, strict=True)
            for at in range(need.lo(pages * page) // page, pages)
        )

    each = [{pages for pages in range(total + 1) if can(rank, pages)} for rank in ranks]
    assert [set(np.flatnonzero(lengths(geometry, total, rank)).tolist()) for rank in ranks] == each
    assert set(np.flatnonzero(agreed(geometry, total, ranks)).tolist()) == set.intersection(*each)


def test_property_17_the_least_of_the_longest_is_not_what_all_have():
    geometry = Geometry.of((GroupSpec("full", Full(), 8, (0,)), GroupSpec("near", Window(2), 8, (1,))), 1)
    whole = np.ones(5, dtype=np.bool_)
    one = [whole, np.array([True, True, False, True, True])]
    other = [np.array([True, True, True, True, False]), whole]
    longest = [int(np.flatnonzero(lengths(geometry, 5, rank))[-1]) for rank in (one, other)]
    assert longest == [5, 4], "and 4 is not restorable on the first rank, whose window there has a hole"
    assert np.flatnonzero(agreed(geometry, 5, [one, other])).tolist() == [0, 1, 2]
