"""Settings, traffic that the library cannot take, and what is said where it is not to be had."""

import sys

import pytest
import torch

from stepwell import Capability, ConfigError, Dispatcher, Format, Traffic
from stepwell.offers import provided
from stepwell_deepep import fit, stepwell_checks, stepwell_dispatchers
from stepwell_deepep.config import ElasticConfig, LowLatencyConfig, NormalConfig
from stepwell_deepep.elastic import DeepEPV2
from stepwell_deepep.low_latency import DeepEPLowLatency
from stepwell_deepep.normal import DeepEP
from stepwell_kernels.dispatch.direct import HasDirect
from stepwell_testkit import KitContext
from stepwell_testkit.together import at_once

TRAFFIC = Traffic(experts=8, top_k=2, hidden=2048, dtype="bfloat16", max_tokens=24)
OFFERS = {offer.name: offer for offer in stepwell_dispatchers()}


def opened(dispatchers, **changed):
    traffic = Traffic(**{**{name: getattr(TRAFFIC, name) for name in TRAFFIC.__slots__}, **changed})
    at_once(lambda rank: dispatchers[rank].open(traffic), len(dispatchers), 30)
    return dispatchers


@pytest.fixture
def machine(monkeypatch):
    """`machine(gpu, nic)`: what the machine lacks of these."""

    def lacks(gpu=None, nic=None):
        monkeypatch.setattr(fit, "gpu_missing", lambda: gpu)
        monkeypatch.setattr(fit, "nic_missing", lambda: nic)

    return lacks


def test_without_the_library_every_offer_says_so_in_a_sentence():
    if fit.folder("deep_ep") is not None:
        pytest.skip("the library is installed")
    assert {offer.missing() for offer in OFFERS.values()} == {fit.INSTALL}


def test_low_latency_needs_a_card_that_gpus_drive_and_normal_does_not(double, machine):
    machine(nic="no card")
    assert OFFERS["deepep"].missing() is None
    assert OFFERS["deepep-low-latency"].missing() == "no card"
    machine(gpu="no gpu")
    assert OFFERS["deepep"].missing() == OFFERS["deepep-low-latency"].missing() == "no gpu"


def test_a_library_of_the_first_generation_has_no_second(double, machine, tmp_path, monkeypatch):
    machine()
    assert "no ElasticBuffer" in OFFERS["deepep-v2"].missing()  # the double is laid out as the first is
    (tmp_path / "buffers").mkdir()
    (tmp_path / "buffers" / "elastic.py").touch()
    monkeypatch.setattr(fit, "folder", lambda package: tmp_path)
    assert OFFERS["deepep-v2"].missing() is None


def test_looking_for_the_library_does_not_import_it(double, machine, monkeypatch):
    machine()
    monkeypatch.delitem(sys.modules, "deep_ep")
    assert OFFERS["deepep"].missing() is None
    assert "deep_ep" not in sys.modules


def test_an_offer_makes_a_dispatcher_that_meets_nobody_yet(double, tmp_path):
    context = KitContext(tmp_path, rank=0, world=4, meet=(tmp_path / "meet").as_uri())
    for offer in OFFERS.values():
        dispatcher = offer.make(offer.config(), context)
        assert isinstance(dispatcher, Dispatcher)
        dispatcher.close()


def test_doctor_has_one_line(double, machine):
    (check,) = stepwell_checks()
    machine(gpu="no gpu")
    assert check.run().level == "warn" and "no gpu" in check.run().text


def test_graphs_where_nobody_waits():
    graphs = {name for name, offer in OFFERS.items() if Capability.GRAPH_SAFE in provided(offer, offer.config())}
    assert graphs == {"deepep-low-latency"}
    assert Capability.GRAPH_SAFE in provided(OFFERS["deepep-v2"], ElasticConfig(sizes="bound"))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: LowLatencyConfig(capacity=2000), "capacity: 2000 is not between 1 and 1024"),
        (lambda: LowLatencyConfig(capacity=0), "capacity: 0"),
        (lambda: NormalConfig(num_sms=21), "num_sms: 21 is not an even number"),
        (lambda: NormalConfig(dispatch_chunks=(8, 8, 6, 128)), "dispatch_chunks"),
        (lambda: ElasticConfig(timeout_s=0), "timeout_s: 0 is not more than 0"),
    ],
)
def test_wrong_settings_are_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.parametrize(
    ("make", "config", "changed", "words"),
    [
        (DeepEP, NormalConfig(), {"dtype": "float32"}, "bfloat16, not float32"),
        (DeepEP, NormalConfig(), {"hidden": 2056}, "multiple of 16"),
        (DeepEP, NormalConfig(), {"hidden": 8192}, "up to 8176"),
        (DeepEP, NormalConfig(), {"experts": 64, "top_k": 33}, "32 experts of a token, not 33"),
        (DeepEP, NormalConfig(), {"experts": 10}, "10 experts do not spread over 4 ranks"),
        (DeepEPV2, ElasticConfig(), {"experts": 10}, "10 experts do not spread evenly"),
        (DeepEPLowLatency, LowLatencyConfig(), {"hidden": 2176}, "hidden sizes of 2048"),
        (DeepEPLowLatency, LowLatencyConfig(), {"experts": 16, "top_k": 12}, "11 experts of a token, not 12"),
        (DeepEPLowLatency, LowLatencyConfig(capacity=512), {"max_tokens": 4096}, "queues of 1026"),
    ],
)
def test_traffic_that_it_cannot_take_is_refused_as_it_opens(over, make, config, changed, words):
    with pytest.raises(ConfigError, match=words):
        opened(over(make, config), **changed)


def test_it_runs_on_two_four_or_eight_ranks_of_a_node(over):
    with pytest.raises(ConfigError, match="on 2, 4 or 8 ranks, or whole nodes of 8, not on 3"):
        opened(over(DeepEP, NormalConfig(), ranks=3), experts=9)


def test_b113_a_capacity_is_no_larger_than_a_batch_can_be(over):
    """Memory is for as many as come; a capacity below what a step may have says so itself."""
    for asked, room in ((128, 24), (10, 12)):
        for dispatcher in opened(over(DeepEPLowLatency, LowLatencyConfig(capacity=asked))):
            assert dispatcher.capacity == room
            dispatcher.close()


def test_a_buffer_that_cannot_be_had_is_refused_with_its_size(over, double, monkeypatch):
    def refuse(self):
        raise RuntimeError("CUDA error: out of memory\nand much more")

    monkeypatch.setattr(double.low.Buffer, "begin_low_latency", refuse)
    with pytest.raises(ConfigError, match=r"buffer of \d+ MiB cannot be had \(CUDA error: out of memory\)"):
        opened(over(DeepEPLowLatency, LowLatencyConfig()))


def test_its_buffers_are_its_own_so_nothing_has_to_be_cleaned(over, double):
    """Of two modes at once none leaves marks in the other's buffer."""
    double.Buffer.made.clear()
    for make, config in ((DeepEP, NormalConfig()), (DeepEPLowLatency, LowLatencyConfig())):
        for dispatcher in opened(over(make, config, ranks=2)):
            dispatcher.close()
    assert {(nvlink > 0, rdma > 0, low) for nvlink, rdma, low in double.Buffer.made} == {
        (True, False, False),
        (False, True, True),
    }


def test_how_many_processors_it_takes_is_a_setting(over, double):
    opened(over(DeepEP, NormalConfig(num_sms=8), ranks=2))
    assert double.Buffer.num_sms == 8


def test_formats():
    assert (DeepEP.format, DeepEPV2.format, DeepEPLowLatency.format) == (Format.ONCE, Format.SORTED, Format.MASKED)


@pytest.mark.parametrize(
    ("make", "config"),
    [
        (DeepEP, NormalConfig()),
        (DeepEPV2, ElasticConfig()),
        (DeepEPV2, ElasticConfig(sizes="bound")),
        (DeepEPLowLatency, LowLatencyConfig()),
    ],
)
def test_the_library_alone_does_the_same_for_benches(over, make, config):
    """Every call of it is one that the double takes."""
    dispatchers = opened(over(make, config, ranks=2))

    def both(rank):
        assert isinstance(dispatchers[rank], HasDirect)
        batch = torch.ones(3, 2048).bfloat16(), torch.tensor([[0, 7]] * 3), torch.full((3, 2), 0.5)
        by_hand = dispatchers[rank].direct(*batch)
        for _ in range(3):
            by_hand.dispatch()
            by_hand.combine()

    at_once(both, 2, 30)
