"""Pools by need: what the config says counts, the rest is solved so that the bytes are used."""

from __future__ import annotations

import random

import pytest

from stepwell.cache.groups import group_of
from stepwell.errors import ConfigError
from stepwell.settings import CacheSettings
from stepwell.sizing import Load, describe, kept, size
from stepwell.types import Chunked, Full, GroupSpec, Window

GIB = 2**30
FULL = GroupSpec("full", Full(), 36864, tuple(range(18)))
SWA = GroupSpec("swa", Window(127), 36864, tuple(range(18)))
WIDE = GroupSpec("swa1023", Window(1023), 4 * 36864, tuple(range(18)))
CHUNKED = GroupSpec("chunked", Chunked(8192), 3 * 36864, tuple(range(18)))


def pools(make, groups=(FULL, SWA), budget=None, load=None, toml="", **cache):
    config = make(toml, **{f"cache.{name}": value for name, value in cache.items()})
    return size(config, config.bind("cache", CacheSettings), groups, budget, load=load)


def used(counts, sizes):
    return sum(count * nbytes for count, nbytes in zip(counts, sizes, strict=True))


def test_windows_are_sized_by_need_and_not_as_full_attention(make):
    sized = pools(make, page_size=64, device_pages=64 * 100, host_pages=64 * 200)
    # Hundred prefixes of 4096 tokens: a window of two pages and one below for each, four pages for each that runs,
    # and the chunks of two steps.
    assert sized.device == (6400, 64 * 4 + 2 * 256 + 100 * 3)
    # Two hundred on host, and windows for eight fetches in flight.
    assert sized.host == (12800, (200 + 8) * 3)


def test_what_runs_has_its_windows(make):
    calm = pools(make, page_size=16, device_pages=10**5, load=Load(running=1, chunk=16, depth=1)).device[1]
    many = pools(make, page_size=16, device_pages=10**5, load=Load(running=33, chunk=16, depth=1)).device[1]
    busy = pools(make, page_size=16, device_pages=10**5, load=Load(running=1, chunk=1616, depth=2)).device[1]
    assert many - calm == 32 * 10  # 127 tokens are 8 pages at most, and two to write to
    assert busy - calm == 2 * 101 - 1


@pytest.mark.parametrize("page", [1, 16, 64])
@pytest.mark.parametrize("gib", [0.5, 4, 24])
@pytest.mark.parametrize("groups", [(FULL, SWA), (FULL, SWA, WIDE), (FULL, CHUNKED), (FULL,), (WIDE,)])
def test_bytes_are_used(make, groups, gib, page):
    if page == 1 and gib > 1:
        pytest.skip("the same, at length")
    sized = pools(make, groups, page_size=page, device_gib=gib, host_gib=gib)
    spare = sum(sized.page_bytes) + 20 * max(sized.page_bytes)
    for counts, sizes in ((sized.device, sized.page_bytes), (sized.host, sized.slots)):
        assert gib * GIB - spare < used(counts, sizes) <= gib * GIB
        assert max(counts) == counts[0] and min(counts) > 0
    assert pools(make, groups, int(gib * GIB), page_size=page).device == tuple(min(2**18, n) for n in sized.device)


def test_more_memory_never_makes_a_pool_smaller(make):
    before = (0, 0, 0)
    for mib in range(20, 4000, 97):
        sized = pools(make, (FULL, SWA, WIDE), page_size=16, device_gib=mib / 1024)
        assert sized.device[0] >= before[0]
        before = sized.device


def test_a_small_pool_is_the_same_for_all(make):
    for pages in (1, 2, 5, 9, 24):
        assert pools(make, page_size=16, device_pages=pages, host_pages=pages).device == (pages, pages)


def test_a_request_runs_whatever_the_size(make):
    draw = random.Random(3)
    for _ in range(200):
        page = draw.choice((1, 4, 16, 64))
        spec = GroupSpec("w", draw.choice((Window, Chunked))(draw.randrange(1, 300)), 8, (0,))
        pages = draw.randrange(1, 4000)
        typical = draw.choice((1, 100, 4096))
        sized = pools(make, (FULL, spec), page_size=page, device_pages=pages, host_pages=pages, typical_tokens=typical)
        need = group_of(spec, page).runs_in(pages * page)
        assert need <= sized.device[1] <= pages
        assert min(pages, need - 1) <= sized.host[1] <= pages


def test_without_full_attention_the_longest_history_sets_the_pace(make):
    assert pools(make, (WIDE,), page_size=16, device_pages=500, host_pages=300).device == (500,)
    few, most = pools(make, (SWA, WIDE), page_size=16, device_pages=65 * 100).device
    assert most == 6500 and few < most / 2
    # A prefix of 4096 tokens keeps 65 pages of one and 9 of the other.
    assert few >= 100 * 9


def test_own_numbers_and_shares(make):
    sized = pools(make, page_size=64, device_gib=4, host_gib=4, toml="[cache.groups.swa]\ndevice_share = 0.1")
    assert used(sized.device[1:], sized.page_bytes[1:]) == pytest.approx(0.1 * 4 * GIB, rel=0.01)
    assert used(sized.device, sized.page_bytes) == pytest.approx(4 * GIB, rel=0.001)
    toml = "[cache.groups.swa]\ndevice_pages = 500\nhost_share = 0.25"
    sized = pools(make, page_size=64, device_gib=4, host_gib=4, toml=toml)
    assert sized.device == (int(4 * GIB) // sized.page_bytes[0] - 500, 500)
    assert used(sized.host[:1], sized.slots[:1]) == pytest.approx(0.75 * 4 * GIB, rel=0.001)
    # What full attention does not take is the windows', which need no more pages than it has.
    toml = "[cache.groups.full]\ndevice_pages = 1000\nhost_pages = 900"
    sized = pools(make, page_size=64, device_gib=4, toml=toml)
    assert sized.device[0] == 1000 and 700 < sized.device[1] <= 1000
    assert sized.host[0] == 900 and 0 < sized.host[1] < 900
    toml = "[cache.groups.full]\ndevice_share = 0.6\n[cache.groups.swa]\ndevice_share = 0.3"
    sized = pools(make, page_size=64, budget=4 * GIB, toml=toml)
    assert sized.device[0] == pytest.approx(2 * sized.device[1], abs=2)


@pytest.mark.parametrize(
    ("toml", "cache", "sentence"),
    [
        (
            "[cache.groups.swa]\ndevice_pages = 9\ndevice_share = 0.1",
            {},
            "swa has device_pages and device_share; set one",
        ),
        ("[cache.groups.swa]\ndevice_share = 1", {}, "swa.device_share = 1 is not between 0 and 1"),
        ("[cache.groups.swa]\nhost_share = nan", {"host_gib": 1}, "swa.host_share (site.toml:2): nan is not of type"),
        ("[cache.groups.swa]\ndevice_pages = 2.5", {}, "swa.device_pages = 2.5 is not a whole number of pages"),
        (
            "[cache.groups.swa]\npages = 3",
            {},
            "swa.pages is no such setting; have device_pages, host_pages, device_share",
        ),
        ("[cache.groups.swa]\ndevice_share = 0.1", {"device_pages": 9}, "device_pages is set; set device_gib instead"),
        ("[cache.groups.swa]\nhost_share = 0.1", {}, "swa.host_share is a share of host_gib, which is not set"),
        (
            "[cache.groups.full]\ndevice_share = 0.7\n[cache.groups.swa]\ndevice_share = 0.4",
            {},
            "device_share of full and swa add up to 1.1, more than all there is",
        ),
        (
            "[cache.groups.swa]\ndevice_pages = 9",
            {"device_pages": 900},
            "swa.device_pages = 9 gives 9 of the 10 pages that a window of 127 tokens needs",
        ),
        (
            "[cache.groups.swa]\nhost_pages = 8",
            {"host_pages": 900},
            "swa.host_pages = 8 gives 8 of the 9 pages that a window of 127 tokens needs",
        ),
        (
            "[cache.groups.swa]\ndevice_share = 0.001",
            {"device_gib": 1},
            "swa.device_share = 0.001 gives 1 of the 10 pages that a window of 127 tokens needs",
        ),
        (
            "[cache.groups.full]\ndevice_share = 1e-9",
            {"device_gib": 1},
            "full.device_share = 1e-09 of 1 GiB holds no page",
        ),
        ("[cache.groups.sww]\ndevice_pages = 9", {}, "the model has no group sww; did you mean swa?"),
        ("[cache.groups.swa]\nhost_pages = 9", {}, "group full has no host pages, so no prefix could come from host"),
        ("", {"device_gib": 1e-5}, "1e-05 GiB hold no page, and one takes 0.0011 GiB"),
        (
            "[cache.groups.swa]\nhost_pages = 9000",
            {"host_gib": 1},
            "1 GiB leave no page for a group, as the pages set in cache.groups take 4.98 GiB",
        ),
        ("", {"typical_tokens": 0}, "0 is less than 1"),
    ],
)
def test_what_cannot_work_is_said_in_a_sentence(make, toml, cache, sentence):
    with pytest.raises(ConfigError) as caught:
        pools(make, page_size=16, toml=toml, **cache)
    assert sentence in str(caught.value) and str(caught.value).startswith("cache.")


def test_what_is_kept_of_a_prefix():
    swa, chunked = group_of(SWA, 64), group_of(CHUNKED, 64)
    assert [kept(swa, tokens) for tokens in (1, 64, 128, 192, 4096, 4100)] == [1, 1, 2, 3, 3, 3]
    assert [kept(chunked, tokens) for tokens in (64, 1024, 4096, 10**6)] == [1, 16, 64, 65]
    assert kept(group_of(FULL, 64), 4100) == 64


def test_pools_are_told_a_line_each(make):
    sized = pools(make, page_size=64, device_pages=6400, host_pages=64)
    assert describe(sized, (FULL, SWA), CacheSettings(page_size=64)) == [
        "device full: 6400 pages = 409600 tokens, 14.06 GiB: room for 100 times a prefix of 4096 tokens",
        "device swa: 1068 pages = 68352 tokens, 2.35 GiB: room for 356 times a window of 127 tokens and a page",
        "host full: 64 pages = 4096 tokens, 144.2 MiB: room for 1 times a prefix of 4096 tokens",
        "host swa: 48 pages = 3072 tokens, 108.2 MiB: room for 16 times a window of 127 tokens and a page",
    ]


def test_chunks_are_called_so_and_large_counts_written_out(make):
    sized = pools(make, (FULL, CHUNKED), page_size=64, device_pages=640000)
    assert [line.rsplit(": ", 1)[1] for line in describe(sized, (FULL, CHUNKED), CacheSettings(page_size=64))] == [
        "room for 10000 times a prefix of 4096 tokens",
        f"room for {sized.device[1] / 129:.0f} times a chunk of 8192 tokens and a page",
    ]
