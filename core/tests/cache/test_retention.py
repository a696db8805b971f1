"""Retained lengths against a model that knows windows by brute force, and by example."""

from __future__ import annotations

from array import array
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.abc.retain import RetentionPolicy
from stepwell.builtin.lru import Lru
from stepwell.builtin.retain import Tail
from stepwell.builtin.writers import WriteBack, WriteBackConfig, WriteThrough
from stepwell.cache.audit import nodes
from stepwell.cache.cache import Cache, CacheShape
from stepwell.cache.groups import Geometry
from stepwell.cache.match import agreed
from stepwell.cache.node import DEVICE, HOST, TIERS
from stepwell.engine.contain import SafeRetention
from stepwell.errors import AuditError
from stepwell.types import DONE, MISSING, Chunked, Full, GroupSpec, Tier, Window

NAMESPACE = bytes(32)


def tokens(values):
    return array("i", values).tobytes()


class Asked(RetentionPolicy):
    """Keeps branches, every third page, and the end; remembers what it was asked and answered."""

    def __init__(self, every=3):
        self.every = every
        self.asked = []
        self.answers = []

    def _answer(self, low, high, page, branches):
        marks = range(low // page + 1, high // page + 1)
        answer = [*branches, *(at * page for at in marks if self.every and at % self.every == 0)]
        self.answers.extend(answer)
        return answer

    def keep(self, length, page, branches):
        end = length // page * page
        return [*self._answer(max(0, end - page), end, page, branches), *self._answer(end, end, page, [end])]

    def along(self, start, end, page, branches):
        self.asked.append((start, end, list(branches)))
        return self._answer(start, end, page, [at for at in branches if at > start])


# region: a model by brute force


class World:
    """Pages are told by group and the tokens up to their end; so are retained lengths."""

    def __init__(self, draw, needs, page, device, host):
        self.draw, self.page = draw, page
        self.specs = tuple(GroupSpec(f"g{i}", need, 8, (i,)) for i, need in enumerate(needs))
        self.windows = [g for g, need in enumerate(needs) if not isinstance(need, Full)]
        self.policy = Asked(draw.choice((0, 2, 3)))
        self.host = host > 0
        self.cache = Cache(
            CacheShape(self.specs, page, (device,) * len(needs), (host,) * len(needs)),
            evict=lambda tier, group: Lru(),
            write=draw.choice((WriteThrough(), WriteBack(WriteBackConfig(0.5)))),
            retain=self.policy,
            storage=self.host,
        )
        self.index = self.cache._index
        self.ends = set()
        self.prompts = [b""]
        self.leases = []
        self.loads = []
        self.saves = []
        self.storage = set()
        self.dead_counts = 0

    def pages(self):
        """Which pages each tier and group has."""
        there = {(tier, g): set() for tier in TIERS for g in range(len(self.specs))}
        self.kept = {g: set() for g in self.windows}
        for node in nodes(self.index):
            path = b"".join(part.edge for part in self.index.path(node, self.index.roots[NAMESPACE]))
            step = self.page * 4
            for g, run in enumerate(node.runs):
                if run is None:
                    continue
                for tier in TIERS:
                    at = np.flatnonzero(run.ids(tier, node.pages) >= 0) + node.first
                    there[tier, g].update(path[: (page + 1) * step] for page in at.tolist())
                if run.kept:
                    at = np.flatnonzero(np.frombuffer(run.kept, dtype=np.bool_)) + node.first
                    self.kept[g].update(path[: (page + 1) * step] for page in at.tolist())
        return there

    def window(self, g, end):
        """The pages that a length needs."""
        low = self.specs[g].need.lo(len(end) // 4) // self.page
        step = self.page * 4
        return {end[: page * step + step] for page in range(low, len(end) // step)}

    def whole(self, there, g, end):
        return self.window(g, end) <= there[DEVICE, g] | there[HOST, g]

    def ask(self, prompt, lengths):
        """Lengths of a prompt that were asked for stay from now on where they are whole."""
        there = self.pages()
        for length in lengths:
            end = prompt[: length // self.page * self.page * 4]
            self.ends.update((g, end) for g in self.windows if self.window(g, end) and self.whole(there, g, end))

    def check(self):
        self.cache.audit()
        there = self.pages()
        self.ends = {(g, end) for g, end in self.ends if self.whole(there, g, end)}
        for g in self.windows:
            needed = set().union(*(self.window(g, end) for group, end in self.ends if group == g))
            assert self.kept[g] == needed
        for prompt in self.prompts[-4:]:
            usable = [
                length
                for length in range(self.page, len(prompt) // 4, self.page)
                if all(self.whole(there, g, prompt[: 4 * length]) for g in range(len(self.specs)))
            ]
            asked = prompt[: len(prompt) // 4 * 4]
            assert self.cache.restorable(NAMESPACE, asked) == tuple(usable)
            assert self.cache.probe(NAMESPACE, asked) == max(usable, default=0)
        return there

    # region: what may happen

    def prompt(self):
        known = self.draw.choice(self.prompts[-6:])
        known = known[: 4 * self.draw.randint(0, len(known) // 4)]
        return known + tokens(self.draw.choices((0, 1), k=self.draw.randint(1, 4 * self.page + 2)))

    def admit(self):
        prompt = self.prompt()
        lease = self.cache.admit(NAMESPACE, prompt, lambda length: length)
        if lease is None:
            return
        assert lease.fork <= len(prompt) // 4 // self.page
        self.leases.append([lease, prompt, lease.cached.total])
        self.loads.extend((lease, copy) for copy in lease.loads)

    def compute(self):
        """A chunk, or all that is left and the end."""
        if not self.leases:
            return
        work = self.draw.choice(self.leases)
        lease, prompt, done = work
        end = self.draw.choice((len(prompt) // 4, min(len(prompt) // 4, done + self.draw.randint(1, 9))))
        if lease.loading or not self.cache.extend(lease, end):
            return
        self.check()
        final = end == len(prompt) // 4
        self.policy.answers.clear()
        self.cache.publish(lease, prompt[: 4 * end], final=final)
        self.ask(prompt, self.policy.answers)
        work[2] = end
        self.cache.trim(lease, end)
        if final:
            self.cache.close(lease)
            self.leases.remove(work)
            self.prompts.append(prompt)

    def load(self):
        while self.loads:
            lease, copy = self.loads.pop()
            self.cache.loaded(lease, copy, [self.draw.random() < 0.9] * len(copy.device))

    def save(self):
        self.saves.extend(self.cache.saves(self.draw.randint(1, 20)))
        while self.saves and self.draw.random() < 0.8:
            copy = self.saves.pop(0)
            self.cache.saved(copy, [self.draw.random() < 0.9 for _ in copy.device])

    def store(self):
        for op in self.cache.stores(20):
            self.storage.update(op.keys)
            self.cache.stored(op, [DONE] * len(op.keys))

    def fetch(self):
        prompt = self.prompt()
        plan = self.cache.plan_fetch(NAMESPACE, prompt)
        op = plan and self.cache.start_fetch(plan, [[key in self.storage for key in keys] for keys in plan.keys], 100)
        if not op:
            return
        self.check()
        results = [[self.draw.choice((DONE, DONE, DONE, DONE, MISSING)) for _ in keys] for _, keys, _ in op.reads]
        length = self.cache.fetched(op, results)
        there = self.pages()
        lower = prompt[: 4 * (length - self.page)] if length else b""
        if all(self.whole(there, g, lower) for g in range(len(self.specs))):
            self.ask(prompt, [length - self.page])
        self.ask(prompt, [length])

    def evict(self):
        """One group in one tier: full groups stay out of it, and what no length needs goes first."""
        tier, g = self.draw.choice((DEVICE, DEVICE, HOST)), self.draw.randrange(len(self.specs))
        pages = self.draw.randint(1, 4)
        if self.draw.random() < 0.4:
            self.rest()
        before, ends = self.pages(), set(self.ends)
        idle = not (self.leases or self.saves or self.loads)
        dead = len(before[tier, g] - self.kept[g]) if g in self.windows else 0
        held = len(before[tier, g])
        freed = self.cache._evictor.evict(tier, g, pages)
        if g not in self.windows:
            return
        after = self.check()
        for full in set(range(len(self.specs))) - set(self.windows):
            assert all(after[t, full] == before[t, full] for t in TIERS)
        if idle:
            assert freed == min(pages, held)
            if dead >= pages:
                assert self.ends == ends
                self.dead_counts += 1

    def rest(self):
        """Nobody holds a page any more."""
        for lease, _, _ in self.leases:
            self.cache.close(lease)
        self.leases.clear()
        self.load()
        while self.saves:
            copy = self.saves.pop()
            self.cache.saved(copy, [True] * len(copy.device))
        self.check()

    def cut(self):
        """One page of a window goes: the lengths whose windows it was in go, and no others (see `check`)."""
        g = self.draw.choice(self.windows)
        tier = self.draw.choice(TIERS) if self.host else DEVICE
        runs = [(node, run) for node in nodes(self.index) if (run := node.runs[g]) is not None]
        if not runs:
            return
        node, run = self.draw.choice(runs)
        loose = np.flatnonzero(self.index.pools[tier][g].loose_mask(run.ids(tier, node.pages)))
        if len(loose):
            self.index.cut(tier, node, g, np.array([self.draw.choice(loose.tolist())]))
            self.index.close_gap(node)
            self.index.settle()

    # endregion


NEEDS = (
    (Full(), Window(5)),
    (Full(), Window(1), Chunked(6)),
    (Full(), Window(3), Window(9)),
    (Window(6),),
    (Window(3), Chunked(8)),
)
OPS = ("admit", "compute", "compute", "compute", "load", "save", "store", "fetch", "evict", "evict", "cut")


@pytest.mark.parametrize("seed", range(8))
def test_marks_are_those_of_the_retained_lengths(seed):
    dead_went_first = 0
    for needs in NEEDS:
        draw = Random(seed)
        world = World(draw, needs, draw.choice((1, 2, 4)), draw.choice((24, 60)), draw.choice((0, 20, 60)))
        for _ in range(250):
            what = draw.choice(OPS)
            if what != "fetch" or world.host:
                getattr(world, what)()
            world.check()
        dead_went_first += world.dead_counts
    assert dead_went_first


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_ranks_agree_on_the_lengths_that_all_of_them_have(data):
    page = data.draw(st.sampled_from((1, 2, 4)))
    needs = data.draw(st.sampled_from(NEEDS))
    geometry = Geometry.of(tuple(GroupSpec(f"g{i}", need, 8, (i,)) for i, need in enumerate(needs)), page)
    total = data.draw(st.integers(0, 12))
    bits = st.lists(st.booleans() | st.just(True), min_size=total, max_size=total)
    ranks = [[np.array(data.draw(bits), dtype=np.bool_) for _ in needs] for _ in range(data.draw(st.integers(1, 3)))]

    def usable(rank):
        return {
            length
            for length in range(total + 1)
            if all(
                there[need.lo(length * page) // page : length].all() for need, there in zip(needs, rank, strict=True)
            )
        }

    together = set(np.flatnonzero(agreed(geometry, total, ranks)).tolist())
    assert together == set.intersection(*map(usable, ranks))


# endregion

# region: by example


class At(RetentionPolicy):
    """Keeps these lengths where the path has them, and the end."""

    def __init__(self, *lengths):
        self.lengths = lengths

    def keep(self, length, page, branches):
        return [*(at for at in self.lengths if at < length), length // page * page]


def hybrid(desk, *lengths, window=4, page=1, device=(400, 60), host=0, **more):
    return desk(page=page, device=device, host=host, needs=(Full(), Window(window)), retain=At(*lengths), **more)


def lose(d, prompt, page):
    """A window's page leaves the device."""
    index = d.cache._index
    _, node, _, inside = index.walk(index.roots[NAMESPACE], tokens(prompt))
    node = inside or node
    while node.first > page:
        node = node.parent
    index.cut(DEVICE, node, 1, np.array([page - node.first]))
    index.settle()
    d.cache.audit()


def kept(d):
    """Kept pages, by node."""
    return {
        tuple(array("i", node.edge)[:1]): [
            node.first + at for at, flag in enumerate(run.kept) if flag
        ]
        for node in nodes(d.cache._index)
        if (run := node.runs[1]) is not None and run.kept
    }  # fmt: skip


def test_two_ends_in_one_node_are_lost_apart(desk):
    d = hybrid(desk, 8)
    d.serve(range(20))
    assert kept(d) == {(0,): [4, 5, 6, 7, 16, 17, 18, 19]}
    lose(d, range(20), 6)
    assert kept(d) == {(0,): [16, 17, 18, 19]}
    assert d.match([*range(20), 9]).length == 20
    lose(d, range(20), 16)
    assert kept(d) == {}
    assert d.match([*range(20), 9]).length == 16, "pages 12 to 15 are still there, though no length needs them"


def test_overlapping_windows_of_one_node(desk):
    d = hybrid(desk, 10)
    d.serve(range(12))
    lose(d, range(12), 11)
    assert kept(d) == {(0,): [6, 7, 8, 9]}, "page 10 was the lost one's alone"
    d = hybrid(desk, 10)
    d.serve(range(12))
    lose(d, range(12), 6)
    assert kept(d) == {(0,): [8, 9, 10, 11]}


def test_a_window_reaches_into_the_node_above(desk):
    d = hybrid(desk)
    d.serve(range(10))
    d.serve([*range(8), *range(50, 52)])
    assert kept(d) == {(0,): [6, 7], (8,): [8, 9], (50,): [8, 9]}
    lose(d, [*range(8), 50, 51], 9)
    assert kept(d) == {(0,): [6, 7], (8,): [8, 9]}, "the sibling needs the same pages above"
    lose(d, range(10), 7)
    assert kept(d) == {}
    assert d.cache.restorable(NAMESPACE, tokens([*range(10), 1]))[-1] == 7


def test_siblings_need_different_tails_of_the_node_above(desk):
    d = hybrid(desk)
    d.serve([*range(10), 20, 21])
    d.serve([*range(10), 30, 31, 32])
    assert kept(d) == {(0,): [8, 9], (20,): [10, 11], (30,): [10, 11, 12]}
    lose(d, [*range(10), 20, 21], 11)
    assert kept(d) == {(0,): [9], (30,): [10, 11, 12]}
    lose(d, range(10), 8)
    assert kept(d) == {(0,): [9], (30,): [10, 11, 12]}, "nobody needed it any more"


def test_what_leaves_with_its_branch_is_needed_no_longer(desk):
    d = hybrid(desk)
    d.serve([*range(10), 20, 21])
    d.serve([*range(10), 30, 31, 32])
    d.cache._evictor.evict(DEVICE, 0, 2)
    d.cache.audit()
    assert kept(d) == {(0,): [9], (30,): [10, 11, 12]}


def test_a_chain_of_nodes_within_one_window(desk):
    d = hybrid(desk, window=6)
    d.serve(range(12))
    for cut in (11, 10, 9, 8):
        d.serve([*range(cut), 100 + cut])
    assert kept(d)[0,] == list(range(3, 8))
    lose(d, range(12), 6)
    assert kept(d) == {}, "all their windows had it"


def test_windows_go_whole(desk):
    d = hybrid(desk)
    for branch in (100, 200, 300):
        d.serve([*range(8), *range(branch, branch + 2)])
    dead = d.device(1).tree_only - 8
    assert d.cache._evictor.evict(DEVICE, 1, dead + 1) == dead + 1
    d.cache.audit()
    assert sorted(kept(d)) == [(0,), (200,), (300,)]
    d.cache._evictor.evict(DEVICE, 1, 1)
    assert sorted(kept(d)) == [(0,), (200,), (300,)], "its other page was next"
    assert d.cache._evictor.evict(DEVICE, 1, 2) == 2
    assert sorted(kept(d)) == [(0,), (300,)]
    d.cache.audit()


def test_what_a_window_leaves_above_goes_with_it(desk):
    """Two sessions' windows in turn; the first reaches into a node above, which goes before the second is touched."""
    d = hybrid(desk)
    d.serve([*range(8), 100, 101])
    d.serve([*range(8), 200])
    d.serve(range(500, 520))
    lose(d, [*range(8), 200], 8)
    d.cache._evictor.evict(DEVICE, 1, d.device(1).tree_only - 8)
    assert d.cache._evictor.evict(DEVICE, 1, 4) == 4
    assert kept(d) == {(500,): [16, 17, 18, 19]}
    assert d.match([*range(500, 520), 1]).length == 20
    d.cache.audit()


def test_a_superseded_end_is_not_dead(desk):
    d = hybrid(desk)
    d.serve(range(8))
    d.serve(range(20), [1])
    d.serve(range(100, 120))
    d.cache._evictor.evict(DEVICE, 1, d.device(1).tree_only - 12)
    assert [d.match([*range(end), 7]).length for end in (8, 20)] == [8, 20]
    assert d.match(range(100, 121)).length == 20


def test_clean_window_pages_go_before_those_that_are_to_be_saved(desk):
    d = hybrid(desk, page=2, device=(60, 30), host=(60, 2), write=WriteBack(WriteBackConfig(1.0)))
    d.serve(range(8))
    assert d.save() == 4 + 2
    d.serve(range(100, 108))
    d.cache._evictor.evict(DEVICE, 1, 4)
    assert d.cache.stats.dropped_dirty == 0, "two that no length needs, of each prompt"
    d.match([*range(8), 1])
    d.cache._evictor.evict(DEVICE, 1, 2)
    assert d.cache.stats.dropped_dirty == 0
    assert d.match([*range(8), 1]).length == 8 and d.match(range(100, 109)).device_length == 8
    d.cache._evictor.evict(DEVICE, 1, 2)
    assert d.cache.stats.dropped_dirty == 2
    d.cache.audit()


def test_of_one_window_the_clean_pages_go_first(desk):
    d = hybrid(desk, page=2, device=(60, 30), host=(60, 1), write=WriteBack(WriteBackConfig(1.0)))
    d.serve(range(8))
    d.save()
    assert d.host(1).tree_only == 1, "room for one of its two pages"
    d.cache._evictor.evict(DEVICE, 1, 2 + 1)
    assert d.cache.stats.dropped_dirty == 0
    assert d.cache.restorable(NAMESPACE, tokens(range(9)))[-1] == 8
    d.cache._evictor.evict(DEVICE, 1, 1)
    assert d.cache.stats.dropped_dirty == 1
    assert d.cache.restorable(NAMESPACE, tokens(range(9))) == ()
    d.cache.audit()


# endregion

# region: retention is asked along the way


def test_what_a_running_request_published_is_asked_about_each_time(desk):
    policy = Asked(0)
    d = desk(page=2, device=100, needs=(Full(), Window(4)), retain=policy)
    d.serve(range(24), chunk=8)
    assert policy.asked == [(0, 8, []), (8, 16, []), (16, 24, [])]
    policy.asked.clear()
    d.serve([*range(13), *range(50, 58)], chunk=8)
    assert policy.asked[0] == (10, 20, [12]), "in a hit, the branch is where the tree's knowledge ended"


def test_a_window_at_a_branch_is_kept_before_the_request_lets_go_of_it(desk):
    policy = Asked(0)
    d = desk(page=1, device=(400, 40), needs=(Full(), Window(4)), retain=policy)
    d.serve(range(30), chunk=10)
    for page in range(30):
        lose(d, range(30), page)
    lease = d.admit([*range(20), *range(50, 60)], 0)
    assert (lease.cached.total, lease.fork) == (0, 20)
    for done in (10, 20, 30):
        assert d.cache.extend(lease, done)
        d.cache.publish(lease, tokens([*range(20), *range(50, 60)][:done]))
        d.cache.trim(lease, done)
    assert policy.asked[3:] == [(0, 10, []), (10, 20, [20]), (19, 30, [20])], "at the very end of a publish, too"
    d.cache._evictor.evict(DEVICE, 1, d.device(1).tree_only - 4)
    assert d.match([*range(20), 7]).length == 20
    d.cache.audit()


def test_a_hit_at_a_branch_keeps_its_window(desk):
    policy = Asked(0)
    d = desk(page=1, device=(400, 60), needs=(Full(), Window(4)), retain=policy)
    d.serve(range(30))
    lease = d.admit([*range(12), *range(50, 60)])
    assert (lease.cached.total, lease.fork) == (12, 12)
    d.cache.publish(lease, tokens([*range(12), *range(50, 60)]))
    assert policy.asked[-1] == (11, 22, [12])
    d.cache.close(lease)
    d.cache._evictor.evict(DEVICE, 1, d.device(1).tree_only - 8)
    assert d.match([*range(12), 7]).length == 12


class AtPrompts(RetentionPolicy):
    """Keeps the window at the end of a prompt and none behind it; notes what it was asked."""

    def __init__(self):
        self.asked = []

    def keep(self, length, page, branches):
        return ()

    def prompted(self, length, page):
        self.asked.append(length)
        return [(length - 1) // page * page]


@pytest.mark.parametrize("length", [21, 23, 24])
@pytest.mark.parametrize("chunk", [4, 8, 100])
def test_a_prompt_is_asked_about_once_and_its_window_serves_it_again(desk, length, chunk):
    policy = AtPrompts()
    d = desk(page=4, host=64, needs=(Full(), Window(6)), retain=policy)
    prompt = [*range(length)]
    d.serve(prompt, range(500, 520), chunk=chunk)
    assert policy.asked == [length]
    d.save()
    d.evict()
    usable = (length - 1) // 4 * 4
    assert d.serve(prompt, range(600, 620), chunk=chunk).host == usable
    assert policy.asked == [length, length], "also where nothing of the prompt was left to publish"
    d.cache.audit()


def test_a_policy_without_an_answer_is_not_asked(desk, monkeypatch):
    def never(*_):
        raise AssertionError("asked")

    monkeypatch.setattr(RetentionPolicy, "along", never)
    for retain in (Tail(), SafeRetention(Tail(), never)):
        d = desk(page=1, device=100, needs=(Full(), Window(4)), retain=retain)
        d.serve(range(30), chunk=7)
    with pytest.raises(AssertionError):
        Tail().along(0, 1, 1, [])


@pytest.mark.parametrize(
    ("answer", "kept_lengths"),
    [
        (lambda start, end: None, []),
        (lambda start, end: 1 / 0, []),
        (lambda start, end: ["x", -2, start, end + 2, end - 1, end], [end for end in (8, 16)]),
    ],
)
def test_nonsense_along_the_way_is_left_out_and_counted(answer, kept_lengths):
    class Odd(Tail):
        def along(self, start, end, page, branches):
            return answer(start, end)

    said = []
    policy = SafeRetention(Odd(), said.append)
    assert [*policy.along(0, 8, 2, []), *policy.along(8, 16, 2, [])] == kept_lengths
    assert len(said) == 2


# endregion

# region: between tiers


def test_a_fetch_serves_the_length_and_the_one_below(desk):
    d = desk(host=64, storage={}, needs=(Full(), Window(8)))
    prompt = list(range(40))
    d.serve(prompt)
    before = d.cache.restorable(NAMESPACE, tokens([*prompt, 1]))
    d.save()
    d.store()
    d.evict()
    d.evict(Tier.HOST)
    assert d.cache.restorable(NAMESPACE, tokens([*prompt, 1])) == ()
    op = d.fetch([*prompt, 1])
    assert d.fetched(op) == 40
    assert {36, 40} <= set(before)
    assert d.cache.restorable(NAMESPACE, tokens([*prompt, 1])) == (36, 40)
    assert d.match(prompt).length == 36, "the same prompt again"
    assert d.fetch([*prompt, 1]) is None and d.fetch(prompt) is None
    d.cache._evictor.evict(HOST, 1, 1)
    assert d.cache.restorable(NAMESPACE, tokens([*prompt, 1])) == (36,), "each is retained by itself"


def test_a_fetch_without_room_or_leave_for_more_takes_the_length_alone(desk):
    for host, limit in (((10, 2), 100), ((20, 20), 12)):
        d = desk(host=64, storage={}, needs=(Full(), Window(8)))
        d.serve(range(40))
        d.save()
        d.store()
        other = desk(host=host, storage=d.storage, needs=(Full(), Window(8)))
        op = other.fetch(range(41), limit)
        assert op.pages == 12 and other.fetched(op) == 40
        assert other.cache.restorable(NAMESPACE, tokens(range(41))) == (40,)


def test_a_load_moves_what_is_missing_and_nothing_else(desk):
    d = hybrid(desk, 8, window=8, page=4, device=(20, 20), host=64)
    d.serve(range(40))
    d.save()
    d.cache._evictor.evict(DEVICE, 0, 4)
    d.cache._evictor.evict(DEVICE, 1, 10**6)
    lease = d.admit(range(41))
    assert lease.cached.total == 40
    assert [(copy.group, len(copy.device)) for copy in lease.loads] == [(0, 4), (1, 2)]
    d.load(lease)
    d.cache.close(lease)
    assert d.match(range(41)).device_length == 40


# endregion


@pytest.mark.parametrize("field", ["kept", "ends", "deep", "reach"])
def test_the_audit_sees_marks_that_are_wrong(desk, field):
    d = hybrid(desk)
    d.serve(range(10))
    d.serve([*range(8), *range(50, 52)])
    run = next(node for node in nodes(d.cache._index) if node.first == 0).runs[1]
    wrong = {"kept": b"\1" * 8, "ends": (9,), "deep": 5, "reach": 4}[field]
    setattr(run, field, wrong)
    with pytest.raises(AuditError):
        d.cache.audit()


def test_retention_hears_where_a_request_ended_and_not_its_whole_pages(desk):
    policy = Asked(0)
    lengths = []
    policy.keep = lambda length, page, branches: lengths.append(length) or ()
    d = desk(page=4, needs=(Full(), Window(6)), retain=policy)
    d.serve(range(22))
    d.serve(range(24))
    assert lengths == [22, 24]


def test_going_on_behind_a_path_is_no_fork(desk):
    d = desk(page=4, needs=(Full(), Window(6)))
    d.serve(range(24))
    assert d.admit(range(40)).fork == 0
    assert d.admit([*range(16), 99, 99, 99, 99]).fork == 4


# endregion
