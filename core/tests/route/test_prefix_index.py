"""The index of prefixes promises what the events said and no more: against a model that looks at every page."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stepwell.abc.sink import Event, PagesRemoved, PagesStored, TierCleared
from stepwell.route.prefix_index import PrefixIndex
from stepwell.types import DIGEST_BYTES, TAG_BYTES, Full, Need, Tier, Window

PAGE = 4
NEEDS: dict[str, Need] = {"full": Full(), "swa": Window(9)}
PAGES = [bytes([at]) * DIGEST_BYTES for at in range(12)]
TIERS = (Tier.DEVICE, Tier.HOST)

changes = st.tuples(
    st.sampled_from(["stored", "removed", "cleared"]),
    st.sampled_from(TIERS),
    st.sampled_from([*NEEDS, "unknown"]),
    st.integers(0, 11),
    st.integers(1, 12),
)


def event(what: str, tier: Tier, group: str, first: int, count: int) -> Event:
    keys = tuple(page + bytes(TAG_BYTES) for page in PAGES[first : first + count])
    match what:
        case "stored":
            return PagesStored(tier, group, keys, None, PAGE)
        case "removed":
            return PagesRemoved(tier, group, keys)
        case _:
            return TierCleared(tier)


class Model:
    """Every page of every tier and group by itself."""

    def __init__(self, needs: dict[str, Need]) -> None:
        self.needs = needs
        self.there: set[tuple[Tier, str, int]] = set()

    def apply(self, what: str, tier: Tier, group: str, first: int, count: int) -> None:
        pages = {(tier, group, page) for page in range(first, min(first + count, len(PAGES)))}
        match what:
            case "stored":
                self.there |= pages
            case "removed":
                self.there -= pages
            case _:
                self.there = {one for one in self.there if one[0] is not tier}

    def cached(self, total: int) -> int:
        def has(group: str, page: int) -> bool:
            return any((tier, group, page) in self.there for tier in TIERS)

        good = [
            length
            for length in range(total + 1)
            if all(
                has(group, page)
                for group, need in self.needs.items()
                for page in range(need.lo(length * PAGE) // PAGE, length)
            )
        ]
        return PAGE * max(good)


@given(st.lists(changes, max_size=40), st.integers(0, 12), st.sampled_from([("full",), ("swa",), ("full", "swa")]))
def test_it_answers_what_a_look_at_every_page_says(
    told: list[tuple[str, Tier, str, int, int]], total: int, groups: tuple[str, ...]
) -> None:
    needs = {name: NEEDS[name] for name in groups}
    index, model = PrefixIndex(PAGE, needs), Model(needs)
    for number, change in enumerate(told):
        assert index.apply("a", [event(*change)], number)
        model.apply(*change)
    assert index.cached(PAGES[:total], ["a", "b"]) == [model.cached(total), 0]
    known = {page for tier, group, page in model.there if group in needs}
    assert len(index) == len(known)
    index.forget("a")
    assert len(index) == 0 and index.cached(PAGES, ["a"]) == [0]


def test_after_a_gap_nothing_from_before_counts() -> None:
    index = PrefixIndex(PAGE, {"full": Full()})
    assert index.apply("a", [event("stored", Tier.DEVICE, "full", 0, 4)], 0)
    assert not index.apply("a", [event("stored", Tier.DEVICE, "full", 4, 2)], 2), "1 was lost"
    assert index.cached(PAGES, ["a"]) == [0] and index.gaps == 1
    assert index.apply("a", [TierCleared(Tier.DEVICE), event("stored", Tier.DEVICE, "full", 0, 5)], 0), "all there is"
    assert index.cached(PAGES, ["a"]) == [5 * PAGE]


def test_the_bound_holds_and_what_is_beyond_it_counts_as_absent() -> None:
    index = PrefixIndex(PAGE, {"full": Full()}, limit=5)
    index.apply("a", [event("stored", Tier.DEVICE, "full", 0, 3)])
    index.apply("b", [event("stored", Tier.DEVICE, "full", 0, 4)])
    assert index.cached(PAGES, ["a", "b"]) == [3 * PAGE, 2 * PAGE]
    assert len(index) == 5 and index.unnoted == 2
    index.apply("a", [event("removed", Tier.DEVICE, "full", 0, 3)])
    index.apply("b", [event("stored", Tier.DEVICE, "full", 2, 2)])
    assert index.cached(PAGES, ["a", "b"]) == [0, 4 * PAGE]
