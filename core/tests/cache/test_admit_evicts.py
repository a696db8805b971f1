"""An admission that has to evict what the prompt itself reaches, but may not use."""

from stepwell.types import Full, Window


def test_a_prompt_of_whole_pages_may_evict_the_page_that_its_last_token_lies_on(desk):
    """The last token is left to compute, so the last page is matched but not held: it is fair game."""
    for needs in [(Full(),), (Full(), Window(3)), (Window(3),)]:
        d = desk(device=3, needs=needs)
        d.serve(range(8))
        d.serve([*range(4), 9, 9, 9, 9])
        lease = d.admit(range(8))
        assert lease is not None and lease.cached.total in (0, 4)
        d.cache.close(lease)
        d.cache.audit()
