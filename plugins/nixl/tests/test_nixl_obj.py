"""A bucket: what is wrong at the start is one sentence, and strangers' objects are left alone."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stepwell import DONE, MISSING, Capability, ConfigError, Failed, PluginError
from stepwell_nixl import bucket, make_obj, obj_provides
from stepwell_nixl.bucket import client, key_of, name_of
from stepwell_nixl.config import ObjConfig
from stepwell_nixl.obj import RETRIES
from stepwell_testkit import KitContext
from stepwell_testkit.bench import Bench
from stepwell_testkit.server import free_port

KEY = bytes(range(40))


def test_nobody_there_is_one_sentence_and_soon(tmp_path: Path) -> None:
    config = ObjConfig(bucket="pages", endpoint=f"http://127.0.0.1:{free_port()}")
    start = time.monotonic()
    with pytest.raises(PluginError, match=r"storage\.endpoint.*does not answer"):
        make_obj(config, KitContext(tmp_path))
    assert time.monotonic() - start < 5


def test_no_such_bucket_is_one_sentence(s3: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"storage\.bucket = 'nothing' is not there: create it"):
        make_obj(replace(s3.config, bucket="nothing"), KitContext(tmp_path))


def test_strangers_objects_are_left_alone(s3: Any, tmp_path: Path) -> None:
    config = s3.config
    names = [
        "stepwell/README",
        "stepwell/" + "ab" * 39,
        "stepwell/" + "AB" * 40,
        "elsewhere",
        "stepwell/sub/" + "ab" * 40,
    ]
    for name in names:
        client(config).put_object(Bucket=config.bucket, Key=name, Body=b"x")
    storage = make_obj(config, KitContext(tmp_path))
    bench = Bench(storage, 4096, 4)
    bench.put([1, 2])
    listed = [page for part in storage.scan() for page in part]
    assert {page.key for page in listed} >= set(bench.keys([1, 2]))
    assert all(page.nbytes == 4096 for page in listed if page.key in bench.keys([1, 2]))
    storage.delete([page.key for page in listed])
    assert not [page for part in storage.scan() for page in part]
    left = {one["Key"] for one in client(config).list_objects_v2(Bucket=config.bucket)["Contents"]}
    assert left >= set(names)
    storage.close()


def test_a_short_object_is_not_a_page_and_a_missing_one_is_no_failure(s3: Any, tmp_path: Path) -> None:
    config = s3.config
    storage = make_obj(config, KitContext(tmp_path))
    bench = Bench(storage, 4096, 8)
    bench.put(range(4))
    where = {"Bucket": config.bucket, "Key": name_of(config.prefix, bench.key(2))}
    for short in (b"", b"x" * 100, b"x" * 4095):
        client(config).put_object(**where, Body=short)
        results, _ = bench.read([0, 1, 2, 3, 9])
        assert isinstance(results[2], Failed) and results[4] == MISSING
        assert [at for at in range(5) if results[at] == DONE] == [0, 1, 3]
    storage.close()


def test_the_environment_is_left_as_it_was(s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "3")
    monkeypatch.delenv("AWS_RETRY_MODE", raising=False)
    before = dict(os.environ)
    storage = make_obj(s3.config, KitContext(tmp_path))
    Bench(storage, 4096, 1).put([1])
    assert dict(os.environ) == before and set(RETRIES) == {"AWS_MAX_ATTEMPTS", "AWS_RETRY_MODE"}
    storage.close()


def test_without_boto3_it_claims_neither_deletion_nor_listing(monkeypatch: pytest.MonkeyPatch) -> None:
    both = {Capability.DELETES, Capability.LISTS}
    assert both <= obj_provides()
    monkeypatch.setattr(bucket, "installed", lambda: False)
    assert not both & obj_provides()


def test_a_name_says_its_key() -> None:
    assert key_of("p/", name_of("p/", KEY)) == KEY
    for name in ("p/", "p/xy", "p/" + KEY.hex()[:-2], "p/" + KEY.hex().upper(), "p/" + KEY.hex() + " "):
        assert key_of("p/", name) is None


@pytest.mark.parametrize(
    ("setting", "value"), [("bucket", ""), ("endpoint", "127.0.0.1:80"), ("access_key", "k"), ("threads", 0)]
)
def test_a_wrong_setting_is_named(setting: str, value: object) -> None:
    settings: dict[str, Any] = {"bucket": "pages", setting: value}
    with pytest.raises(ValueError, match=setting):
        ObjConfig(**settings)
