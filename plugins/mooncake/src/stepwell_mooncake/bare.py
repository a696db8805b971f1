"""The client library alone, with the same settings: its own checksum too, where that is on."""

from __future__ import annotations

from collections.abc import Sequence

from stepwell import ArenaView, Context, PageKey, PageViews
from stepwell_mooncake.client import OK, connect, meaning, placing
from stepwell_mooncake.config import MooncakeConfig
from stepwell_mooncake.moves import get, names_of, put


class MooncakeNative:
    """`batch_put_from` and `batch_get_into` on the registered arena."""

    def __init__(self, config: MooncakeConfig, context: Context, arena: ArenaView) -> None:
        self._client = connect(config, context.rank)
        self._how, self._prefix = placing(config), config.prefix
        self._put: set[str] = set()
        _check([self._client.register_buffer(arena.address, arena.nbytes)], OK)

    def put(self, keys: Sequence[PageKey], pages: PageViews) -> None:
        names = names_of(self._prefix, keys)
        self._put.update(names)
        _check(put(self._client, names, pages.addresses, pages.sizes, self._how), OK)

    def get(self, keys: Sequence[PageKey], into: PageViews) -> None:
        codes = get(self._client, names_of(self._prefix, keys), into.addresses, into.sizes)
        _check(codes, int(into.sizes.sum()))

    def close(self) -> None:
        self._client.batch_remove(list(self._put), True)
        self._client.close()


def _check(codes: Sequence[int], right: int) -> None:
    wrong = [code for code in codes if code != right]
    if wrong:
        raise RuntimeError(f"{len(wrong)} of {len(codes)} pages were not moved: {meaning(wrong[0])}")
