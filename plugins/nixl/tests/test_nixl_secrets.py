"""Keys and tokens come by reference and are shown nowhere."""

from pathlib import Path

import pytest

from stepwell.config import Config
from stepwell_nixl.config import ObjConfig, UcxConfig
from stepwell_nixl.obj import params

WORD = "a-very-secret-word"


@pytest.mark.parametrize(
    ("kind", "table", "names"),
    [
        (ObjConfig, 'use = "nixl-obj"\nbucket = "b"\n', ("access_key", "secret_key")),
        (UcxConfig, 'use = "nixl-ucx"\npeer = "h:1"\n', ("token",)),
    ],
)
def test_secrets_come_by_reference_and_are_never_shown(
    tmp_path: Path, kind: type, table: str, names: tuple[str, ...]
) -> None:
    path = tmp_path / "stepwell.toml"
    path.write_text(f"[storage]\n{table}" + "".join(f'{name} = {{ env = "WORD" }}\n' for name in names))
    config = Config.load(path, {"WORD": WORD})
    bound = config.bind("storage", kind)
    assert [getattr(bound, name) for name in names] == [WORD] * len(names)
    assert WORD not in repr(bound) and WORD not in str(config.shown())


def test_the_client_gets_them_as_plain_text() -> None:
    """What is not set is left to what the client finds by itself."""
    config = Config.load(None, {}, ["storage.bucket=b", "storage.access_key=k", f"storage.secret_key={WORD}"])
    given = params(config.bind("storage", ObjConfig))
    assert given["secret_key"] == WORD and type(given["secret_key"]) is type(given["access_key"]) is str
    assert not {"access_key", "secret_key"} & params(ObjConfig(bucket="b")).keys()
