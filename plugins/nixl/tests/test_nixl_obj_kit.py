"""The kit of storages on a bucket of a server in this machine."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from stepwell import PageKey, Storage
from stepwell_nixl import make_obj, obj_provides
from stepwell_nixl.bucket import client, name_of
from stepwell_testkit import KitContext, StorageKit


@pytest.mark.slow
class TestNixlObj(StorageKit):
    provides = obj_provides()
    forks = False
    patience_s = 25.0  # requests under way to a frozen server end with the S3 client's own deadlines, tried twice

    @pytest.fixture
    def server(self, s3: Any) -> Any:
        return s3

    @pytest.fixture
    def damage(self, s3: Any) -> Callable[[PageKey, str], None]:
        bucket, config = client(s3.config), s3.config

        def spoil(key: PageKey, how: str) -> None:
            where = {"Bucket": config.bucket, "Key": name_of(config.prefix, key)}
            data = bucket.get_object(**where)["Body"].read()
            bad = data[: len(data) // 2] if how == "short" else data[:-1] + bytes([data[-1] ^ 1])
            bucket.put_object(**where, Body=bad)

        return spoil

    @pytest.fixture
    def reopen(self, s3: Any, context: KitContext) -> Callable[[], Storage]:
        return lambda: make_obj(s3.config, context)

    @pytest.fixture
    def storage(self, reopen: Callable[[], Storage]) -> Iterator[Storage]:
        storage = reopen()
        yield storage
        storage.close()
