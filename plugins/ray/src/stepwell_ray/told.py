"""What is told of an application while it comes up, runs and fails."""

from __future__ import annotations

import re

import msgspec

ENGINE = "engine"
"""Name of the deployment that holds the engines."""
RAISED = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception|Failed): (.+)$", re.MULTILINE)
"""How a traceback ends."""


class State(msgspec.Struct):
    """An application as Ray Serve sees it."""

    name: str
    status: str
    """RUNNING, DEPLOYING, UNHEALTHY, ..., or ABSENT."""
    url: str
    message: str
    replicas: dict[str, dict[str, int]]
    """By deployment: how many replicas are STARTING, RUNNING, ..."""


def progress(now: State) -> str:
    """How far it is, in a line."""
    parts = []
    for name, states in sorted(now.replicas.items(), key=lambda one: one[0] != ENGINE):
        counts = ", ".join(f"{count} {state.lower()}" for state, count in sorted(states.items())) or "none yet"
        parts.append(f"{name}: {counts}")
    return f"{now.status.lower()}  " + "  ".join(parts)


def why(message: str) -> str:
    """The sentence that matters out of what Serve says about a failure, which is tracebacks."""
    raised = RAISED.findall(message)
    if raised:
        return str(raised[-1]).strip()
    return message.strip().partition("\n")[0] or "Ray Serve could not deploy it, and does not say why"
