"""Dispatchers made of two of one kind: each part has ranks that meet at a place of its own."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from stepwell import Exchange, Part, Traffic
from stepwell_kernels.collective import TorchGroup
from stepwell_kernels.dispatch.config import AutoConfig, LowLatencyConfig, SlowedConfig
from stepwell_kernels.plugin import stepwell_dispatchers
from stepwell_testkit import KitContext
from stepwell_testkit.server import free_port

OFFERS = {offer.name: offer for offer in stepwell_dispatchers()}
SMALL = Part(OFFERS["collective-low-latency"], LowLatencyConfig(capacity=4, timeout_s=20))
TRAFFIC = Traffic(experts=4, top_k=1, hidden=8, dtype="float32", max_tokens=4)


@pytest.mark.parametrize("scheme", ["file", "tcp"])
@pytest.mark.parametrize(
    "part",
    [
        Part(OFFERS["auto"], AutoConfig(SMALL, SMALL)),
        Part(OFFERS["auto"], AutoConfig(SMALL, Part(OFFERS["slowed"], SlowedConfig(SMALL, gb_per_s=1000)))),
    ],
)
def test_two_parts_of_one_kind_do_not_meet_each_other(part, scheme, tmp_path):
    meet = f"file://{tmp_path}/meet" if scheme == "file" else f"tcp://127.0.0.1:{free_port()}"

    def rank(at):
        dispatcher = part.make(KitContext(tmp_path, rank=at, world=2, meet=meet))
        dispatcher.open(TRAFFIC)
        found = []
        for prefill in (True, False):
            one = dispatcher.pick(Exchange(4, prefill))
            tokens, experts = torch.full((3, 8), float(at + 1)), torch.tensor([[0], [3], [1]])
            got = one.dispatch_finish(one.dispatch_start(tokens, experts, torch.ones(3, 1)))
            found.append(one.combine_finish(one.combine_start(got.tokens.clone(), got)))
        dispatcher.close()
        return found

    with ThreadPoolExecutor(2) as threads:
        for at, sums in enumerate(threads.map(rank, range(2))):
            assert all(torch.equal(one, torch.full((3, 8), float(at + 1))) for one in sums)


def test_a_fragment_of_a_place_is_part_of_a_groups_name(tmp_path):
    def join(at, where):
        return TorchGroup.join(f"file://{tmp_path}/meet{where}", at, 2, "cpu", 20, name="one")

    with ThreadPoolExecutor(4) as threads:
        asked = [threads.submit(join, at, where) for where in ("#a", "#b") for at in range(2)]
        groups = [one.result() for one in asked]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["meet-one-a", "meet-one-b"]
    for group in groups:
        group.close()
