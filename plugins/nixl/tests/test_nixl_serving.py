"""An engine that serves while a peer or an S3 server is killed, and when it is back."""

from __future__ import annotations

from typing import Any

import pytest

from stepwell_testkit.serving import under_fault


@pytest.mark.slow
def test_a_peer_that_is_killed_costs_hits_alone(peer: Any) -> None:
    storage = {"use": "nixl-ucx", "peer": peer.config.peer}
    report = under_fault(storage, peer.kill, peer.start)
    print(report)
    report.check()


@pytest.mark.slow
def test_an_s3_server_that_is_killed_costs_hits_alone(s3: Any) -> None:
    config = s3.config
    storage = {
        "use": "nixl-obj",
        "bucket": config.bucket,
        "endpoint": config.endpoint,
        "access_key": config.access_key,
        "secret_key": config.secret_key,
    }
    patient = {"prefetch.base_s": 2.0, "tiers.timeout_s": 10.0}  # moto answers some hundred requests a second
    report = under_fault(storage, s3.kill, s3.start, settings=patient, before_s=3.0, recover_s=40.0)
    print(report)
    report.check()
