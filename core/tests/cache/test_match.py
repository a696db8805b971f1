"""One function answers every match: it equals brute force over every length."""

from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.cache.groups import Geometry
from stepwell.cache.match import longest, usable
from stepwell.types import Chunked, Full, GroupSpec, Window

PAGES = st.sampled_from((1, 4, 16))


@st.composite
def needs(draw, page):
    return draw(
        st.one_of(
            st.sampled_from((Window(1), Window(page), Window(max(1, page - 1)), Window(page + 1), Window(10**6))),
            st.builds(Window, st.integers(0, 5 * page)),
            st.builds(Chunked, st.integers(1, 5 * page)),
        )
    )


def brute(groups, page, length, present):
    def whole(pages):
        return all(
            present[g][at] for g, group in enumerate(groups) for at in range(group.need.lo(pages * page) // page, pages)
        )

    return [whole(pages) for pages in range(length + 1)]


@given(st.data(), PAGES, st.integers(0, 60), st.integers(1, 3))
@settings(max_examples=600, deadline=None)
def test_the_longest_usable_length_equals_brute_force(data, page, length, count):
    groups = tuple(GroupSpec(f"g{i}", data.draw(needs(page)), 1, (i,)) for i in range(count))
    geometry = Geometry.of(groups, page)
    flags = st.one_of(
        st.lists(st.booleans(), min_size=length, max_size=length),
        st.lists(st.sampled_from((True, True, True, True, False)), min_size=length, max_size=length),
        st.integers(0, length).map(lambda cut: [at >= cut for at in range(length)]),
    )
    present = [data.draw(flags) for _ in groups]
    good = brute(groups, page, length, present)
    raw = [(g, bytes(each)) for g, each in enumerate(present)]
    assert usable(geometry, length, raw).tolist() == good
    assert longest(geometry, length, raw) == max(at for at, fine in enumerate(good) if fine)


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
