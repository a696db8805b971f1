"""What NIXL's OBJ backend cannot do with a bucket, and boto3 can: delete, list, and say that the bucket is there.

boto3 is the extra `obj`. Where it is not installed the offer claims neither DELETES nor LISTS.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.util import find_spec

from stepwell import ConfigError, PageKey, StoredPage
from stepwell_nixl.config import ObjConfig

KEY = 40
ANSWER_S = 5.0
"""How long an answer may take."""
AT_ONCE = 1000
"""Names in one request to delete: the most that S3 takes."""


def installed() -> bool:
    """Whether boto3 is there."""
    return find_spec("boto3") is not None


def client(config: ObjConfig):  # type: ignore[no-untyped-def]  # boto3 makes its classes as it runs
    """A client that gives up early: core decides what is tried again."""
    import boto3
    from botocore.config import Config

    return boto3.client(
        "s3",
        endpoint_url=config.endpoint or None,
        region_name=config.region,
        aws_access_key_id=str(config.access_key or "") or None,
        aws_secret_access_key=str(config.secret_key or "") or None,
        verify=config.ca_bundle or None,
        config=Config(
            connect_timeout=config.timeout_s,
            read_timeout=ANSWER_S,
            retries={"total_max_attempts": 1},
            s3={"addressing_style": "virtual" if config.virtual_addressing else "path"},
        ),
    )


class Bucket:
    """Our objects in a bucket."""

    def __init__(self, config: ObjConfig) -> None:
        self._name, self._prefix = config.bucket, config.prefix
        self._client = client(config)

    def check(self) -> None:
        """Raise one sentence where the bucket cannot be used."""
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            self._client.head_bucket(Bucket=self._name)
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", error))
            why = "is not there: create it" if code in ("404", "NoSuchBucket") else f"cannot be used ({code})"
            raise ConfigError(f"storage.bucket = {self._name!r} {why}") from None
        except BotoCoreError as error:
            raise ConfigError(f"storage.bucket = {self._name!r} cannot be used: {error}") from None

    def delete(self, keys: Sequence[PageKey]) -> None:
        """Remove objects; those that are not there are no error."""
        for at in range(0, len(keys), AT_ONCE):
            names = [{"Key": name_of(self._prefix, key)} for key in keys[at : at + AT_ONCE]]
            answer = self._client.delete_objects(Bucket=self._name, Delete={"Objects": names, "Quiet": True})
            for error in answer.get("Errors", []):
                raise OSError(f"{error.get('Key')} was not deleted: {error.get('Code')} {error.get('Message')}")

    def scan(self) -> Iterator[Sequence[StoredPage]]:
        """Every object whose name is one of ours."""
        for part in self._client.get_paginator("list_objects_v2").paginate(Bucket=self._name, Prefix=self._prefix):
            pages = [
                StoredPage(key, int(one["Size"]))
                for one in part.get("Contents", [])
                if (key := key_of(self._prefix, str(one["Key"]))) is not None
            ]
            if pages:
                yield pages


def name_of(prefix: str, key: PageKey) -> str:
    """The name of a page's object."""
    return prefix + key.hex()


def key_of(prefix: str, name: str) -> PageKey | None:
    """The page's key, by the name of its object; None for a stranger's."""
    text = name[len(prefix) :]
    try:
        key = bytes.fromhex(text)
    except ValueError:
        return None
    return key if len(key) == KEY and name_of(prefix, key) == name else None
