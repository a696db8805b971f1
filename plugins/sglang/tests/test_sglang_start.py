"""What is wrong is said at the start, in one sentence."""

from __future__ import annotations

from typing import Any

import pytest

from stepwell import Capability, StepwellError
from stepwell_sglang import trial

CASES = {
    "nothing": ({}, "names no storage"),
    "no such storage": ({"storage": {"use": "fiel"}}, "storage.use = 'fiel'"),
    "no such setting": ({"storage": {"use": "memory", "gb": 1}}, "storage.gb"),
    "a wrong value": ({"storage": {"use": "memory", "gib": -1}}, "gib"),
    "a typo": ({"storage": {"use": "memory"}, "verfy": True}, "did you mean verify?"),
    "not a table": ({"storage": "file"}, "is not a table"),
    "no file": ({"config": "/nowhere/stepwell.toml"}, "/nowhere/stepwell.toml"),
    "no switch": ({"storage": {"use": "memory"}, "verify": "maybe"}, "verify"),
    "no size": ({"storage": {"use": "memory"}, "bounce_mib": 0}, "bounce_mib"),
    "no calls": ({"storage": {"use": "memory"}, "calls": 0}, "calls"),
    "no limits": ({"storage": {"use": "memory"}, "tiers": {"timeout_s": 0}}, "timeout_s"),
}


@pytest.mark.parametrize(("extra", "says"), CASES.values(), ids=CASES)
def test_a_wrong_config_is_one_sentence(extra: dict[str, object], says: str) -> None:
    from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory

    whole = {**trial.dynamic({}), **extra}
    if not whole["storage"]:
        del whole["storage"]
    with pytest.raises(StepwellError) as error:
        StorageBackendFactory.create_backend("dynamic", trial.config(whole), trial.mha())
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_may_say_it_and_the_table_beside_it_wins(tmp_path: Any) -> None:
    path = tmp_path / "stepwell.toml"
    path.write_text('[storage]\nuse = "memory"\ngib = 2\n[tiers]\ntimeout_s = 1.5\n[cache]\nhost_pages = 5\n')
    extra = trial.dynamic({"gib": 0.5}, config=str(path))
    store = trial.attach("dynamic", trial.mha(), trial.config(extra))
    assert store._settings.choice.settings.gib == 0.5
    assert store._calls.limits.timeout_s == 1.5
    store.close()


def test_layouts_in_which_a_page_is_scattered_are_refused() -> None:
    for pool in (trial.mha("layer_first"), trial.mha("page_head"), trial.mla("layer_first")):
        store = trial.attach  # the refusal comes when the pool is registered
        with pytest.raises(StepwellError, match=f"{pool.layout}.*--hicache-mem-layout page_first"):
            store("dynamic", pool, trial.config(trial.dynamic({"use": "memory"})))


def test_seals_are_kept_unless_the_store_checks_by_itself(attach: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = trial.mha()
    assert attach(pool)._library.sealing
    assert not attach(pool, more={"verify": False})._library.sealing
    from stepwell.config import Chosen

    monkeypatch.setattr(Chosen, "provides", property(lambda self: frozenset({Capability.CHECKS})))
    assert not attach(pool)._library.sealing
    assert attach(pool, more={"verify": True})._library.sealing
