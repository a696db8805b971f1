"""Settings, traffic that the library cannot take, and what is said where it is not to be had."""

import sys

import pytest
import torch

from stepwell import Capability, ConfigError, Dispatcher, Traffic
from stepwell_kernels.dispatch.direct import HasDirect
from stepwell_nixl_ep import fit, stepwell_checks, stepwell_dispatchers
from stepwell_nixl_ep.config import NixlEPConfig
from stepwell_testkit import KitContext
from stepwell_testkit.together import at_once

TRAFFIC = {"experts": 8, "top_k": 2, "hidden": 2048, "dtype": "bfloat16", "max_tokens": 24}
(OFFER,) = stepwell_dispatchers()


def opened(dispatchers, **changed):
    at_once(lambda rank: dispatchers[rank].open(Traffic(**{**TRAFFIC, **changed})), len(dispatchers), 30)
    return dispatchers


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """`machine(tags, gpu, mismatch)`: for which torches extensions are there, and what the machine lacks."""

    def has(tags=("213",), gpu=None, mismatch=None):
        for tag in tags:
            (tmp_path / f"nixl_ep_cpp_torch{tag}.cpython-312-x86_64-linux-gnu.so").touch()
        monkeypatch.setattr(fit, "folder", lambda name: tmp_path if name == "nixl_ep_cu13" else None)
        monkeypatch.setattr(fit, "torch_tag", lambda: "213")
        monkeypatch.setattr(fit, "gpu_missing", lambda: gpu)
        monkeypatch.setattr(fit, "cuda_mismatch", lambda name, major: mismatch)

    return has


def test_what_is_missing_is_said_in_a_sentence(machine, monkeypatch):
    monkeypatch.setattr(fit, "folder", lambda package: None)
    assert OFFER.missing() == f"it needs NIXL with its expert parallelism: {fit.INSTALL}"
    machine(tags=("211", "212"))
    assert OFFER.missing().startswith("the NIXL that is installed is built for torch 211, 212, and 213 is installed")
    machine(mismatch="another CUDA")
    assert OFFER.missing() == f"another CUDA: {fit.INSTALL}"
    machine(gpu="no gpu")
    assert OFFER.missing() == "no gpu"
    machine()
    assert OFFER.missing() is None


def test_looking_for_the_library_does_not_import_it(double, monkeypatch):
    monkeypatch.delitem(sys.modules, "nixl_ep")
    OFFER.missing()
    assert "nixl_ep" not in sys.modules


def test_an_offer_makes_a_dispatcher_that_meets_nobody_yet(double, tmp_path, monkeypatch):
    monkeypatch.setattr("stepwell_nixl_ep.package", lambda: "nixl_ep")
    context = KitContext(tmp_path, rank=0, world=4, meet=(tmp_path / "meet").as_uri())
    dispatcher = OFFER.make(OFFER.config(), context)
    assert isinstance(dispatcher, Dispatcher)
    dispatcher.close()


def test_doctor_has_one_line(double, monkeypatch):
    (check,) = stepwell_checks()
    monkeypatch.setattr(fit, "missing", lambda: "no gpu")
    assert check.run().level == "warn" and "no gpu" in check.run().text


def test_it_goes_into_graphs():
    assert Capability.GRAPH_SAFE in OFFER.provides


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"capacity": 2000}, "capacity: 2000 is not between 1 and 1024"),
        ({"capacity": 0}, "capacity: 0"),
        ({"timeout_s": 0}, "timeout_s: 0 is not"),
    ],
)
def test_wrong_settings_are_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        NixlEPConfig(**settings)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"dtype": "float32"}, "bfloat16, not float32"),
        ({"hidden": 2176}, "hidden sizes of 2048"),
        ({"experts": 16, "top_k": 12}, "11 experts of a token, not 12"),
        ({"experts": 9}, "9 experts do not spread evenly over 2 ranks"),
    ],
)
def test_traffic_that_it_cannot_take_is_refused_as_it_opens(over, changed, words):
    with pytest.raises(ConfigError, match=words):
        opened(over(), **changed)


def test_b113_a_capacity_is_no_larger_than_a_batch_can_be(over):
    for asked, room in ((128, 24), (10, 12)):
        for dispatcher in opened(over(NixlEPConfig(capacity=asked))):
            assert dispatcher.capacity == room
            dispatcher.close()


def test_b113_memory_that_cannot_be_had_is_refused_with_its_size(over, double):
    double.room = 1 << 20
    with pytest.raises(ConfigError, match=r"\d+ MiB .*24 tokens"):
        opened(over())


def test_the_library_alone_does_the_same_for_benches(over):
    """Every call of it is one that the double takes."""
    dispatchers = opened(over(ranks=2))

    def both(rank):
        assert isinstance(dispatchers[rank], HasDirect)
        batch = torch.ones(3, 2048).bfloat16(), torch.tensor([[0, 7]] * 3), torch.full((3, 2), 0.5)
        by_hand = dispatchers[rank].direct(*batch)
        for _ in range(3):
            by_hand.dispatch()
            by_hand.combine()

    at_once(both, 2, 30)
