"""Stepwell on Ray Serve: `stepwell deploy ray`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.util import find_spec

import click

from stepwell import hookimpl
from stepwell.offers import Check, Finding


def lacking() -> str:
    """Why nothing can be deployed, in a sentence; empty where it can."""
    if find_spec("ray") is None:
        return "Ray is not installed: pip install 'ray[serve]>=2.60'"
    if find_spec("fastapi") is None:  # asked for by Serve alone; to look for ray.serve would import Ray
        return "Ray is installed without Serve: pip install 'ray[serve]>=2.60'"
    return ""


@hookimpl
def stepwell_commands() -> Iterable[click.Command]:
    """`ray`, under the group `deploy`."""
    from stepwell_ray.commands import deploy

    return [deploy]


@hookimpl
def stepwell_sections() -> Mapping[str, type]:
    """`[ray]`."""
    from stepwell_ray.settings import RaySettings

    return {"ray": RaySettings}


@hookimpl
def stepwell_checks() -> Iterable[Check]:
    """Whether Ray Serve is there."""
    return [Check("serve", _serve)]


def _serve() -> Finding:
    why = lacking()
    return Finding("warn" if why else "ok", why or "Ray Serve is installed")
