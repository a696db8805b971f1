"""Settings, what the library is told, and what is said where it is not to be had."""

import sys

import pytest

from stepwell import ConfigError, Dispatcher, Format, Traffic
from stepwell_mori import fit, stepwell_checks, stepwell_dispatchers
from stepwell_mori.config import MoriConfig
from stepwell_testkit import KitContext
from stepwell_testkit.together import at_once

TRAFFIC = {"experts": 8, "top_k": 2, "hidden": 32, "dtype": "bfloat16", "max_tokens": 24}
(OFFER,) = stepwell_dispatchers()


def opened(dispatchers, **changed):
    at_once(lambda rank: dispatchers[rank].open(Traffic(**{**TRAFFIC, **changed})), len(dispatchers), 30)
    return dispatchers


def test_what_is_missing_is_said_in_a_sentence(monkeypatch, tmp_path):
    monkeypatch.setattr(fit, "folder", lambda package: None)
    assert OFFER.missing() == "it needs MORI: pip install 'stepwell-mori[library]'"
    monkeypatch.setattr(fit, "folder", lambda package: tmp_path)
    assert "AMD GPUs with ROCm" in fit.missing(tmp_path / "kfd")
    (tmp_path / "kfd").touch()
    assert fit.missing(tmp_path / "kfd") is None


def test_looking_for_the_library_does_not_import_it(double, monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "mori"]:
        monkeypatch.delitem(sys.modules, name)
    OFFER.missing()
    assert "mori" not in sys.modules


def test_an_offer_makes_a_dispatcher_that_meets_nobody_yet(double, tmp_path):
    dispatcher = OFFER.make(OFFER.config(), KitContext(tmp_path, world=4, meet=(tmp_path / "meet").as_uri()))
    assert isinstance(dispatcher, Dispatcher) and dispatcher.format is Format.ONCE and dispatcher.in_flight == 1
    dispatcher.close()


def test_doctor_has_one_line(double, monkeypatch):
    (check,) = stepwell_checks()
    monkeypatch.setattr(fit, "missing", lambda: "no gpu")
    assert check.run().level == "warn" and "no gpu" in check.run().text


@pytest.mark.parametrize(
    ("settings", "words"), [({"blocks": 0}, "blocks: 0 is less than 1"), ({"timeout_s": 0}, "timeout_s: 0")]
)
def test_wrong_settings_are_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        MoriConfig(**settings)


def test_the_library_is_told_who_is_there_and_how_much_may_come(over, double):
    for rank, dispatcher in enumerate(opened(over(MoriConfig(kernel="InterNodeV1", blocks=32), ranks=2))):
        told = dispatcher._op.config
        assert (told.rank, told.world_size, told.gpu_per_node) == (rank, 2, 2)
        assert (told.max_num_inp_token_per_rank, told.num_experts_per_rank, told.num_experts_per_token) == (24, 4, 2)
        assert told.kernel_type.name == "InterNodeV1" and told.block_num == 32
        dispatcher.close()
    assert sorted(double.shmem.asked) == [0, 1] and len(double.shmem.finalized) == 2


@pytest.mark.parametrize(
    ("changed", "words"), [({"dtype": "float32"}, "bfloat16, not float32"), ({"experts": 10}, "10 experts")]
)
def test_traffic_that_it_cannot_take_is_refused_as_it_opens(over, changed, words):
    with pytest.raises(ConfigError, match=words):
        opened(over(), **changed)


def test_memory_that_cannot_be_had_is_refused_with_the_number_of_tokens(over, double):
    double.ops.heap = 1 << 10
    with pytest.raises(ConfigError, match=r"room for 24 tokens of a rank .*MORI_SHMEM_HEAP_SIZE"):
        opened(over())


def test_ranks_that_share_no_memory_are_refused(over, double):
    double.shmem.status = 1
    with pytest.raises(ConfigError, match="memory that all ranks reach"):
        opened(over(ranks=1))
