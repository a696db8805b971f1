"""Random work on small caches: after each operation every page has the owners counted, and holds what it says."""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from stepwell.builtin.lru import Lru
from stepwell.builtin.retain import Tail
from stepwell.builtin.writers import WriteBack, WriteBackConfig, WriteThrough, WriteThroughSelective
from stepwell.cache.audit import nodes
from stepwell.cache.cache import Cache, CacheShape, FetchOp, Lease, StoreOp
from stepwell.cache.node import DEVICE, HOST, TIERS
from stepwell.types import DONE, MISSING, Chunked, Failed, Full, GroupSpec, Tier, Window

NAMESPACES = (bytes(32), b"\x01" * 32)
WRITERS = (WriteThrough, WriteThroughSelective, lambda: WriteBack(WriteBackConfig(0.25)))
NEEDS: tuple[tuple[Any, ...], ...] = (
    (Full(),),
    (Full(), Window(5)),
    (Full(), Window(1), Chunked(6)),
    (Full(), Full(), Window(8)),
    (Window(6),),
    (Window(3), Chunked(4)),
    (Full(), Window(1), Window(100)),
    (Full(), Window(16), Chunked(24)),
)
T = TypeVar("T")


class Draw(Protocol):
    """Where choices come from: hypothesis, which can shrink them, or a generator, which goes further."""

    def number(self, low: int, high: int) -> int: ...
    def pick(self, among: Sequence[T]) -> T: ...


class FromData:
    def __init__(self, data: Any) -> None:
        self._data = data

    def number(self, low: int, high: int) -> int:
        return int(self._data.draw(st.integers(low, high)))

    def pick(self, among: Sequence[T]) -> T:
        return among[self.number(0, len(among) - 1)]


class FromSeed:
    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def number(self, low: int, high: int) -> int:
        return self._random.randint(low, high)

    def pick(self, among: Sequence[T]) -> T:
        return self._random.choice(among)


class Run:
    """A request under way: what it was given, what it has computed."""

    def __init__(self, lease: Lease, namespace: bytes, tokens: bytes, done: int) -> None:
        self.lease, self.namespace, self.tokens, self.done = lease, namespace, tokens, done


class World:
    """A cache, and a model of what every page holds."""

    def __init__(self, needs: Sequence[Any], page: int, device: int, host: int, writer: Any, events: bool) -> None:
        self.page = page
        self.specs = tuple(GroupSpec(f"g{i}", need, 8, (i,)) for i, need in enumerate(needs))
        groups = len(needs)
        self.cache = Cache(
            CacheShape(self.specs, page, (device,) * groups, (host,) * groups),
            evict=lambda tier, group: Lru(),
            write=writer(),
            retain=Tail(),
            storage=host > 0,
            events=events,
        )
        self.runs: list[Run] = []
        self.prompts: list[tuple[bytes, bytes]] = []
        self.loads: list[tuple[Run, Any, list[Any]]] = []
        self.saves: list[tuple[Any, list[Any]]] = []
        self.stores: list[StoreOp] = []
        self.fetches: list[FetchOp] = []
        self.content: dict[tuple[int, int, int], Any] = {}
        self.storage: dict[bytes, Any] = {}
        self.steps: list[tuple[int, set[tuple[int, int]]]] = []
        self.launched = 0
        self.now = 0.0

    def key(self, namespace: bytes, tokens: bytes, group: int, page: int) -> Any:
        """What a page of a prompt holds."""
        return namespace[:1], group, tokens[: (page + 1) * self.page * 4]

    def expected(self, run: Run, group: int, page: int) -> Any:
        return self.key(run.namespace, run.tokens, group, page)

    def fresh(self, group: int, ids: Any) -> None:
        for page in ids.tolist():
            assert all((group, page) not in pages for _, pages in self.steps), "allocated while a step may use it"
            self.content[DEVICE, group, page] = None

    def sound(self) -> None:
        self.cache.audit()
        self.visible()
        for usages in self.cache.usage().values():
            for usage in usages:
                assert usage.free + usage.limbo + usage.tree_only + usage.held == usage.total
        self.cache.drain_events()

    # region: requests

    def admit(self, draw: Draw) -> None:
        namespace = draw.pick(NAMESPACES)
        raw = array("i", [draw.number(0, 1) for _ in range(draw.number(1, 40))]).tobytes()
        if self.prompts and draw.number(0, 3):
            namespace, known = draw.pick(self.prompts[-8:])
            raw = known + raw[: draw.pick((0, 4, 24))]
        load = draw.number(0, 4) > 0
        match = self.cache.match(namespace, raw)
        self.check_match(namespace, raw, match)
        upto = min(len(raw) // 4, match.length + draw.number(0, 12))
        lease = self.cache.admit(namespace, raw, lambda length: max(length, upto), load=load)
        if lease is None:
            return
        run = Run(lease, namespace, raw, lease.cached.total)
        assert lease.cached.total == (match.length if load else match.device_length)
        self.runs.append(run)
        loading = {(copy.group, page) for copy in lease.loads for page in copy.device.tolist()}
        for group, table in enumerate(lease.tables):
            for page in range(lease.trimmed[group], lease.pages):
                held = int(table[page])
                assert held >= 0
                if page * self.page >= run.done or (group, held) in loading:
                    self.fresh(group, table[page : page + 1])
                else:
                    assert self.content[DEVICE, group, held] == self.expected(run, group, page)
        for copy in lease.loads:
            assert len(copy.device) == len(copy.host) > 0
            self.loads.append((run, copy, [self.content[HOST, copy.group, i] for i in copy.host.tolist()]))

    def compute(self, draw: Draw) -> None:
        if not self.runs:
            return
        run = draw.pick(self.runs)
        lease = run.lease
        if lease.loading or lease.broken:
            before = lease.published
            self.cache.publish(lease, run.tokens)
            assert lease.published == before
            return
        before = lease.pages
        end = run.done + draw.number(1, 12)
        if not self.cache.extend(lease, end):
            assert lease.pages == before
            end = min(end, lease.capacity)
        for group, table in enumerate(lease.tables):
            self.fresh(group, table[before : lease.pages])
        if end > len(run.tokens) // 4:
            run.tokens += array("i", [draw.number(0, 1) for _ in range(12)]).tobytes()
        self.write(run, end)
        if draw.number(0, 1):
            self.cache.publish(lease, run.tokens[: end * 4])
            self.check_run(run)
        if draw.number(0, 1):
            self.cache.trim(lease, end)

    def write(self, run: Run, end: int) -> None:
        seen = {(key[1], page) for (tier, key), page in self.visible().items() if tier == DEVICE}
        for group, table in enumerate(run.lease.tables):
            for page in range(run.done // self.page, -(-end // self.page)):
                held = int(table[page])
                assert held >= 0
                assert (group, held) not in seen, "written while others may read it"
                others = [other.lease.tables[group].tolist() for other in self.runs if other is not run]
                assert not any(held in other for other in others), "written while another holds it"
                self.content[DEVICE, group, held] = self.key(run.namespace, run.tokens[: end * 4], group, page)
        run.done = end
        self.check_run(run)

    def check_run(self, run: Run) -> None:
        for group, table in enumerate(run.lease.tables):
            low = self.specs[group].need.lo(run.done) // self.page
            for page in range(max(low, run.lease.trimmed[group]), run.done // self.page):
                assert self.content[DEVICE, group, int(table[page])] == self.expected(run, group, page)
            assert (table[run.lease.trimmed[group] : run.lease.pages] >= 0).all()
            assert run.lease.trimmed[group] <= low

    def end(self, draw: Draw) -> None:
        if not self.runs:
            return
        run = draw.pick(self.runs)
        if draw.number(0, 3):
            expires = draw.pick((None, None, self.now + 3.0))
            self.cache.publish(run.lease, run.tokens[: run.done * 4], final=True, expires=expires)
        self.cache.close(run.lease)
        self.cache.close(run.lease)
        self.runs.remove(run)
        self.prompts.append((run.namespace, run.tokens[: run.done * 4]))

    def serve(self, draw: Draw) -> None:
        """A request from end to end, then its pages down a tier, then out of the one above."""
        before = len(self.runs)
        self.admit(draw)
        if len(self.runs) == before:
            return
        run = self.runs[-1]
        while any(run is loading for loading, _, _ in self.loads):
            self.load(draw)
        if run not in self.runs:
            return
        if self.cache.extend(run.lease, len(run.tokens) // 4):
            for group, table in enumerate(run.lease.tables):
                self.fresh(group, table[run.done // self.page : run.lease.pages])
            self.write(run, max(run.done, len(run.tokens) // 4))
        self.cache.publish(run.lease, run.tokens[: run.done * 4], final=True)
        self.cache.close(run.lease)
        self.runs.remove(run)
        self.prompts.append((run.namespace, run.tokens[: run.done * 4]))
        if draw.number(0, 1):
            self.copy_down(draw)
        if draw.number(0, 1):
            self.press(draw)

    def expire(self, draw: Draw) -> None:
        self.now += draw.number(0, 3)
        self.cache.expire(self.now)

    def launch(self, draw: Draw) -> None:
        self.launched += 1
        pages = {
            (group, page)
            for run in self.runs
            for group, table in enumerate(run.lease.tables)
            for page in table[table >= 0].tolist()
        }
        self.steps.append((self.launched, pages))
        self.cache.step_launched(self.launched)

    def complete(self, draw: Draw) -> None:
        if self.steps:
            number, _ = self.steps.pop(0)
            self.cache.step_completed(number)

    # endregion

    # region: what is there

    def check_match(self, namespace: bytes, raw: bytes, match: Any) -> None:
        seen = self.visible()
        for tiers, found in (((DEVICE,), match.device_length), (TIERS, match.length)):
            best = 0
            for pages in range(1, (len(raw) // 4 - 1) // self.page + 1):
                if all(
                    any((tier, self.key(namespace, raw, g, at)) in seen for tier in tiers)
                    for g, group in enumerate(self.specs)
                    for at in range(group.need.lo(pages * self.page) // self.page, pages)
                ):
                    best = pages
            assert found == best * self.page
        assert self.cache.probe(namespace, raw) == match.length
        for g in range(len(self.specs)):
            for i in range(len(match.device[g])):
                key = self.key(namespace, raw, g, match.first[g] + i)
                device, host = int(match.device[g][i]), int(match.host[g][i])
                assert (device < 0) != (host < 0)
                assert self.content[(DEVICE, g, device) if device >= 0 else (HOST, g, host)] == key

    def visible(self) -> dict[tuple[int, Any], int]:
        seen: dict[tuple[int, Any], int] = {}
        for root_name, root in self.cache._index.roots.items():
            stack = [(root, b"")]
            while stack:
                node, prefix = stack.pop()
                tokens = prefix + node.edge
                for group, run in enumerate(node.runs):
                    if run is None:
                        continue
                    for tier in TIERS:
                        for i, page in enumerate(run.ids(tier, node.pages).tolist()):
                            if page >= 0:
                                key = self.key(root_name, tokens, group, node.first + i)
                                assert self.content[tier, group, page] == key, "visible, and holds something else"
                                seen[tier, key] = page
                stack.extend((child, tokens) for child in node.children.values())
        return seen

    # endregion

    # region: copies

    def outcome(self, draw: Draw, pages: int) -> list[bool]:
        if draw.number(0, 2):
            return [True] * pages
        return [bool(draw.number(0, 3)) for _ in range(pages)]

    def load(self, draw: Draw) -> None:
        if not self.loads:
            return
        run, copy, was = self.loads.pop(draw.number(0, len(self.loads) - 1))
        ok = self.outcome(draw, len(was))
        for i, (page, host) in enumerate(zip(copy.device.tolist(), copy.host.tolist(), strict=True)):
            assert self.content[HOST, copy.group, host] == was[i], "a source was rewritten under the copy"
            assert self.content[DEVICE, copy.group, page] is None, "a target was written under the copy"
            self.content[DEVICE, copy.group, page] = was[i] if ok[i] else "torn"
        assert self.cache.loaded(run.lease, copy, ok) == all(ok)
        if run not in self.runs:
            return
        if run.lease.broken:
            self.cache.close(run.lease)
            self.runs.remove(run)
        elif not run.lease.loading:
            self.check_run(run)

    def save(self, draw: Draw) -> None:
        limit = draw.number(1, 40)
        copies = self.cache.saves(limit)
        assert sum(len(copy.device) for copy in copies) <= limit
        for copy in copies:
            was = [self.content[DEVICE, copy.group, page] for page in copy.device.tolist()]
            assert None not in was and "torn" not in was
            for page in copy.host.tolist():
                self.content[HOST, copy.group, page] = None
            self.saves.append((copy, was))

    def saved(self, draw: Draw) -> None:
        if not self.saves:
            return
        copy, was = self.saves.pop(draw.number(0, len(self.saves) - 1))
        ok = self.outcome(draw, len(was))
        for i, (page, host) in enumerate(zip(copy.device.tolist(), copy.host.tolist(), strict=True)):
            assert self.content[DEVICE, copy.group, page] == was[i], "a source was rewritten under the copy"
            assert self.content[HOST, copy.group, host] is None
            self.content[HOST, copy.group, host] = was[i] if ok[i] else "torn"
        self.cache.saved(copy, ok)

    def store(self, draw: Draw) -> None:
        ops = self.cache.stores(draw.number(1, 40))
        for op in ops:
            assert len(op.keys) == len(op.host)
            assert len(set(op.keys)) == len(op.keys)
        self.stores.extend(ops)

    def stored(self, draw: Draw) -> None:
        if not self.stores:
            return
        op = self.stores.pop(draw.number(0, len(self.stores) - 1))
        results: list[Any] = []
        for key, page in zip(op.keys, op.host.tolist(), strict=True):
            held = self.content[HOST, op.group, page]
            assert self.storage.get(key, held) == held, "one key, two contents"
            results.append(draw.pick((DONE, DONE, DONE, Failed("full"))))
            if results[-1] is DONE:
                self.storage[key] = held
        self.cache.stored(op, results)

    def copy_down(self, draw: Draw) -> None:
        for _ in range(3):
            self.save(draw)
            while self.saves:
                self.saved(draw)
            self.store(draw)
            while self.stores:
                self.stored(draw)

    def fetch(self, draw: Draw) -> None:
        if not self.prompts:
            return
        namespace, tokens = draw.pick(self.prompts[-8:])
        tokens += bytes(4)
        plan = self.cache.plan_fetch(namespace, tokens)
        if plan is None:
            return
        for g, keys in enumerate(plan.keys):
            for key, page in zip(keys, plan.pages[g], strict=True):
                if key in self.storage:
                    assert self.storage[key] == self.key(namespace, tokens, g, page)
        limit = draw.number(1, 40)
        op = self.cache.start_fetch(plan, [[key in self.storage for key in keys] for keys in plan.keys], limit)
        if op is None:
            return
        assert 0 < op.pages <= limit
        for group, _, ids in op.reads:
            for page in ids.tolist():
                self.content[HOST, group, page] = None
        self.fetches.append(op)

    def fetched(self, draw: Draw) -> None:
        if not self.fetches:
            return
        op = self.fetches.pop(draw.number(0, len(self.fetches) - 1))
        results = []
        for group, keys, ids in op.reads[: draw.number(0, len(op.reads)) if draw.number(0, 1) else None]:
            ok = self.outcome(draw, len(keys))
            answers: list[Any] = []
            for i, (key, page) in enumerate(zip(keys, ids.tolist(), strict=True)):
                assert self.content[HOST, group, page] is None, "reassigned while the read may write"
                self.content[HOST, group, page] = self.storage[key] if ok[i] else "torn"
                answers.append(DONE if ok[i] else draw.pick((MISSING, Failed("torn"))))
            results.append(answers)
        length = self.cache.fetched(op, results)
        assert self.cache.probe(op.plan.namespace, op.plan.tokens + bytes(4)) == length

    def press(self, draw: Draw) -> None:
        tier, pages = draw.pick((DEVICE, DEVICE, HOST)), draw.number(1, 60)
        for group in range(len(self.specs)):
            pool = self.cache._index.pools[tier][group]
            before, able = pool.free, min(pages, pool.available() - pool.free)
            assert self.cache._evictor.evict(tier, group, pages) == pool.free - before >= able

    def flush(self, draw: Draw) -> None:
        self.cache.flush()
        if not self.runs and not self.loads and not self.saves and not self.stores and not self.steps:
            assert not list(nodes(self.cache._index))

    # endregion

    def stop(self) -> None:
        """Everything ends, and nothing is left."""
        for run in self.runs:
            self.cache.close(run.lease)
        self.cache.step_completed(self.launched)
        for run, copy, was in self.loads:
            self.cache.loaded(run.lease, copy, [False] * len(was))
        for copy, was in self.saves:
            self.cache.saved(copy, [False] * len(was))
        for op in self.stores:
            self.cache.stored(op, [MISSING] * len(op.host))
        for fetch in self.fetches:
            self.cache.fetched(fetch, [])
        self.cache.flush()
        self.cache.audit()
        assert not list(nodes(self.cache._index))
        usage = self.cache.usage()
        assert all(each.free == each.total for tier in (Tier.DEVICE, Tier.HOST) for each in usage[tier])


OFTEN = (
    "serve",
    "serve",
    "serve",
    "serve",
    "admit",
    "compute",
    "compute",
    "compute",
    "end",
    "end",
    "load",
    "copy_down",
    "fetch",
    "fetched",
    "press",
)
SELDOM = ("save", "saved", "store", "stored", "launch", "complete", "complete", "expire", "flush")


class Machine(RuleBasedStateMachine):
    @initialize(
        needs=st.sampled_from(NEEDS),
        page=st.sampled_from((1, 2, 3, 4, 16)),
        device=st.integers(12, 40),
        host=st.sampled_from((0, 6, 20, 60)),
        writer=st.sampled_from(WRITERS),
        events=st.booleans(),
    )
    def start(self, needs: Any, page: int, device: int, host: int, writer: Any, events: bool) -> None:
        self.world = World(needs, page, device, host, writer, events)

    @rule(data=st.data(), name=st.sampled_from(sorted({*OFTEN, *SELDOM})))
    def step(self, data: Any, name: str) -> None:
        getattr(self.world, name)(FromData(data))
        self.world.sound()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.stop()


TestMachine = Machine.TestCase
TestMachine.settings = settings(
    max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)


@pytest.mark.parametrize("seed", range(48))
def test_long_walks(seed: int) -> None:
    draw = FromSeed(seed)
    writer = WRITERS[seed // len(NEEDS) % len(WRITERS)]
    needs = NEEDS[seed % len(NEEDS)]
    page, device, host = draw.pick((1, 2, 3, 4, 16)), draw.number(16, 60), draw.pick((0, 6, 20, 60))
    world = World(needs, page, device, host, writer, seed % 4 == 0)
    for _ in range(300):
        getattr(world, draw.pick(OFTEN if draw.number(0, 2) else SELDOM))(draw)
        world.sound()
    world.stop()
