"""The plugin that offers NIXL as storage: `nixl` (a folder), `nixl-obj`, `nixl-ucx` and `nixl-gds`."""

from __future__ import annotations

from collections.abc import Iterable

import click

from stepwell import ArenaView, Capability, Context, Native, Offer, Storage, hookimpl
from stepwell_nixl import bucket, client, gds
from stepwell_nixl.config import GdsConfig, NixlConfig, ObjConfig, UcxConfig

FOLDER = frozenset(
    {
        Capability.ZERO_COPY,
        Capability.PERSISTENT,
        Capability.SHARED,
        Capability.EVICTS,
        Capability.DELETES,
        Capability.LISTS,
    }
)


OBJECTS = frozenset({Capability.ZERO_COPY, Capability.PERSISTENT, Capability.SHARED, Capability.APART})
"""Apart, since the S3 client ends a process that ends while a request is under way."""


def obj_provides() -> frozenset[Capability]:
    """NIXL neither deletes nor lists objects; boto3 does, where it is installed."""
    return OBJECTS | {Capability.DELETES, Capability.LISTS} if bucket.installed() else OBJECTS


def make(config: NixlConfig, context: Context) -> Storage:
    """A folder through NIXL's POSIX backend."""
    from stepwell_nixl.files import FileStorage

    params = {f"use_{config.engine}": "true"}
    return FileStorage(config, context, "POSIX", params, config.direct, f"engine = {config.engine!r}")


def make_gds(config: GdsConfig, context: Context) -> Storage:
    """A folder through NIXL's GPUDirect Storage backends."""
    from stepwell_nixl.files import FileStorage

    gds.check()
    return FileStorage(config, context, config.backend, {}, "auto", f"backend = {config.backend!r}")


def make_native(config: NixlConfig | ObjConfig | UcxConfig, context: Context, arena: ArenaView) -> Native:
    """NIXL alone."""
    from stepwell_nixl.native import NativeBucket, NativeFolder, NativePeer

    match config:
        case NixlConfig():
            return NativeFolder(config, context, arena)
        case ObjConfig():
            return NativeBucket(config, context, arena)
        case UcxConfig():
            return NativePeer(config, context, arena)


def make_obj(config: ObjConfig, context: Context) -> Storage:
    """A bucket through NIXL's OBJ backend."""
    from stepwell_nixl.obj import ObjStorage

    return ObjStorage(config, context)


def make_ucx(config: UcxConfig, context: Context) -> Storage:
    """A peer's memory through NIXL's UCX backend."""
    from stepwell_nixl.ucx import UcxStorage

    return UcxStorage(config, context)


@hookimpl
def stepwell_storages() -> list[Offer[Storage]]:
    """One offer a NIXL backend."""
    return [
        Offer("nixl", make, NixlConfig, client.missing, FOLDER, make_native),
        Offer("nixl-gds", make_gds, GdsConfig, gds.missing, FOLDER),
        Offer("nixl-obj", make_obj, ObjConfig, client.missing, obj_provides(), make_native),
        Offer("nixl-ucx", make_ucx, UcxConfig, client.missing, FOLDER, make_native),
    ]


@hookimpl
def stepwell_commands() -> Iterable[click.Command]:
    """`stepwell nixl peer`."""
    from stepwell_nixl.commands import peer

    return [peer]
