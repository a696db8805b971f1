"""One engine in a Ray Serve replica: Serve starts, watches and ends it; front ends reach it over a socket of its own.

Tokens and KV events do not pass through Ray: a message a step serves all requests of a front end, where Ray would move
one object a token and request. Serve still counts what runs here, by what the engine itself reports.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Sequence
from functools import partial

import ray
import zmq
from ray import serve

from stepwell.assemble import Assembly
from stepwell.engine.gate import Gate
from stepwell.engine.loop import Said
from stepwell.engine.messages import Pulse
from stepwell.engine.shell import Shell
from stepwell.route.choose import chosen
from stepwell_ray.parcel import Parcel
from stepwell_ray.where import Where

END_S = 15.0
"""Beyond the engine's own time to drain: for saves, stores and the last answers."""


class Replica:
    """Deployed; Ray Serve calls what is public."""

    def __init__(self, parcel: Parcel) -> None:
        """Load the model and listen. Whatever is raised ends the start, and Serve tries again a few times."""
        self._log = logging.getLogger("stepwell.ray")
        config = parcel.open()
        registry = config.load_plugins()
        chosen(config, registry)
        assembly = Assembly(config, registry)
        self._silent_s = assembly.resolved.ranks.timeout_s + END_S
        self._pulse: Pulse | None = None
        self._heard = time.monotonic()
        self._gate: Gate | None = None
        self._shell = Shell(partial(assembly.parts, again=_has_run()), self._deliver)
        parts = self._shell.start()
        for line in parts.summary:
            self._log.info("%s", line)
        public, secret = zmq.curve_keypair()
        self._gate = Gate(f"tcp://{_this_node()}:*", parts.hello, self._shell.post, keys=(public, secret))
        name = serve.get_replica_context().replica_id.unique_id
        self._where = Where(name=name, address=self._gate.address, key=public, pid=os.getpid())
        threading.Thread(target=self._pass_on, args=(self._gate,), name="stepwell-gate", daemon=True).start()

    def where(self) -> Where:
        """Asked by front ends of every replica that runs."""
        return self._where

    def check_health(self) -> None:
        """Serve puts another replica in the place of one that raises here."""
        if not self._shell.running:
            raise RuntimeError(self._shell.failed or "the engine has ended")
        silent = time.monotonic() - self._heard
        if silent > self._silent_s:
            raise RuntimeError(f"the engine's serving loop was not heard for {silent:.0f} s")

    def record_autoscaling_stats(self) -> dict[str, float]:
        """What the number of replicas follows."""
        pulse = self._pulse
        return {"ongoing": float(pulse.running + pulse.waiting) if pulse is not None else 0.0}

    def __del__(self) -> None:
        """Serve lets go of this replica: new requests are refused, those under way finish."""
        shell = getattr(self, "_shell", None)
        if shell is not None and shell.running:
            shell.stop("the replica is being ended")
            shell.join()

    def _deliver(self, said: Sequence[Said]) -> None:
        for one in said:
            if isinstance(one, Pulse):
                self._pulse, self._heard = one, time.monotonic()
        if self._gate is not None:
            self._gate.deliver(said)

    def _pass_on(self, gate: Gate) -> None:
        while self._shell.running:
            gate.turn()
        self._shell.join()
        gate.close(self._shell.failed or "the engine was stopped")


def _this_node() -> str:
    """The address by which Ray knows this machine: loopback in a Ray of one's own."""
    own = ray.get_runtime_context().get_node_id()
    return next(str(node["NodeManagerAddress"]) for node in ray.nodes() if node["NodeID"] == own)


def _has_run() -> bool:
    """Whether the application served already: then a replica comes up even where its storage does not."""
    name = serve.get_replica_context().app_name
    found = serve.status().applications.get(name)
    return found is not None and found.status == "RUNNING"
