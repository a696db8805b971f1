"""The tree against a flat twin: a dictionary from prefix to page id for each tier and group, and no tree at all.

The twin foretells what admissions and publishes do, page id by page id. What pressure takes and what is saved is for
policies to say, so there it learns what changed, and checks that it was allowed.
"""

from __future__ import annotations

from array import array

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepwell.cache.audit import nodes
from stepwell.types import Chunked, Full, Window

NAMESPACE = bytes(32)
RARE = 10**6
DEVICE, HOST = 0, 1
NEEDS = (
    (Full(), Window(1)),
    (Full(), Window(5)),
    (Full(), Window(16), Chunked(6)),
    (Full(), Window(100)),
    (Full(), Full(), Window(3)),
    (Window(4),),
    (Window(7), Chunked(5)),
)


def tokens(values):
    return array("i", values).tobytes()


class Twin:
    def __init__(self, d, needs):
        self.d, self.needs, self.page = d, needs, d.page
        self.pages = {(tier, group): {} for tier in (DEVICE, HOST) for group in range(len(needs))}
        self.full = [group for group, need in enumerate(needs) if isinstance(need, Full)]
        self.prompts = [[0] * 2 * d.page]
        self.open = []

    # region: what it foretells

    def prefix(self, prompt, at):
        return tuple(prompt[: (at + 1) * self.page])

    def there(self, group, prompt, at, tiers):
        return any(self.prefix(prompt, at) in self.pages[tier, group] for tier in tiers)

    def longest(self, prompt, limit, tiers):
        for pages in range(limit // self.page, 0, -1):
            if all(
                self.there(group, prompt, at, tiers)
                for group, need in enumerate(self.needs)
                for at in range(need.lo(pages * self.page) // self.page, pages)
            ):
                return pages * self.page
        return 0

    def admit(self, prompt, load):
        if len(self.open) == 3:
            return
        lease = self.d.cache.admit(NAMESPACE, tokens(prompt), lambda length: len(prompt), load=load)
        assert lease is not None
        end = self.longest(prompt, len(prompt) - 1, (DEVICE, HOST) if load else (DEVICE,))
        assert lease.cached.total == end
        loads = {group: [] for group in range(len(self.needs))}
        for copy in lease.loads:
            loads[copy.group] += copy.host.tolist()
        for group, need in enumerate(self.needs):
            sources = []
            for at in range(need.lo(end) // self.page, end // self.page):
                prefix = self.prefix(prompt, at)
                here = self.pages[DEVICE, group].get(prefix)
                if here is None:
                    sources.append(self.pages[HOST, group][prefix])
                    here = int(lease.tables[group][at])
                    self.pages[DEVICE, group][prefix] = here
                assert lease.tables[group][at] == here
            assert loads[group] == sources
        self.d.load(lease)
        self.open.append((lease, prompt, [end]))

    def publish(self, which, end, cut, final):
        lease, prompt, done = self.open[which]
        done[0] = max(done[0], min(end, len(prompt)))
        self.d.cache.trim(lease, min(cut, done[0]))
        before = [table.tolist() for table in lease.tables]
        known = lease.published
        self.d.cache.publish(lease, tokens(prompt[: done[0]]), final=final)
        for group, table in enumerate(lease.tables):
            for at in range(lease.trimmed[group], done[0] // self.page):
                theirs = self.pages[DEVICE, group].setdefault(self.prefix(prompt, at), before[group][at])
                assert table[at] == theirs
                assert at >= known or before[group][at] == theirs or final, "published pages stay"
        if final:
            self.d.cache.close(lease)
            del self.open[which]
            self.prompts.append(prompt[: done[0]])

    # endregion

    # region: what it learns

    def dump(self):
        found = {key: {} for key in self.pages}
        for node in nodes(self.d.cache._index):
            path, here = [], node
            while here.parent is not None:
                path.append(here.edge)
                here = here.parent
            prompt = array("i", b"".join(reversed(path))).tolist()
            for group, run in enumerate(node.runs):
                for tier in (DEVICE, HOST):
                    ids = [] if run is None else run.ids(tier, node.pages).tolist()
                    for at, page in enumerate(ids):
                        if page >= 0:
                            found[tier, group][self.prefix(prompt, node.first + at)] = page
        return found

    def learn(self, may_lose=(), may_win=()):
        found = self.dump()
        for key, had in self.pages.items():
            has = found[key]
            assert all(has[prefix] == page for prefix, page in had.items() if prefix in has), "a page changed its id"
            assert key in may_lose or had.keys() <= has.keys()
            assert key in may_win or has.keys() <= had.keys()
        for group in self.full:
            there = found[DEVICE, group].keys() | found[HOST, group].keys()
            assert all(prefix[: -self.page] in there for prefix in there if len(prefix) > self.page), "a hole"
            device = found[DEVICE, group]
            assert all(prefix[: -self.page] in device for prefix in device if len(prefix) > self.page)
        self.pages = found

    def evict(self, tier, group, pages):
        pool = self.d.cache._pools[tier][group]
        free, able = pool.free, min(pages, pool.available() - pool.free)
        self.d.cache._evictor.evict(tier, group, pages)
        assert pool.free - free >= able
        if group in self.full or not self.full:
            self.learn(may_lose=list(self.pages))
        else:
            self.learn(may_lose=[(tier, group)])

    def save(self):
        self.d.save()
        self.learn(may_win=[key for key in self.pages if key[0] == HOST])

    # endregion

    def same(self):
        self.d.cache.audit()
        assert self.dump() == self.pages
        for prompt in self.prompts[-3:]:
            for length in range(0, len(prompt) + 1, max(1, self.page - 1)):
                asked = [*prompt[:length], RARE]
                best = self.longest(asked, length, (DEVICE, HOST))
                assert self.d.cache.probe(NAMESPACE, tokens(asked)) == best
            match = self.d.match([*prompt, RARE])
            assert match.device_length == self.longest(prompt, len(prompt), (DEVICE,))
            for group, ids in enumerate(match.device):
                for i, page in enumerate(ids.tolist()):
                    prefix = self.prefix(prompt, match.first[group] + i)
                    assert page == self.pages[DEVICE, group].get(prefix, -1)
                    if page < 0:
                        assert match.host[group][i] == self.pages[HOST, group][prefix]


@pytest.mark.parametrize("needs", NEEDS, ids=str)
@given(st.data(), st.sampled_from((1, 4, 16)))
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
def test_property_21_the_tree_is_a_dictionary_of_prefixes(desk, needs, data, page):
    d = desk(page=page, needs=needs, device=200, host=200)
    twin = Twin(d, needs)
    number = lambda low, high: data.draw(st.integers(low, high))  # noqa: E731
    for _ in range(16):
        act = data.draw(st.sampled_from(("admit", "publish", "publish", "end", "save", "evict")))
        if act == "admit" or (act in ("publish", "end") and not twin.open):
            known = data.draw(st.sampled_from(twin.prompts[-4:]))
            more = data.draw(st.lists(st.integers(0, 1), min_size=1, max_size=3 * page))
            twin.admit([*known[: number(0, len(known))], *more], load=number(0, 3) > 0)
        elif act in ("publish", "end"):
            which = number(0, len(twin.open) - 1)
            length = len(twin.open[which][1])
            twin.publish(which, number(1, length), number(0, length), final=act == "end")
        elif act == "save":
            twin.save()
        else:
            twin.evict(number(0, 1), number(0, len(needs) - 1), number(1, 20))
        twin.same()
