"""Stepwell: a three-tier prefix cache for serving language models, in which every decision is a plugin."""

from stepwell.abc.attend import AttentionLayers, AttentionRows, AttentionRun, PagedAttention
from stepwell.abc.balance import Balancer, ExpertLoad, Placement, Topology
from stepwell.abc.codec import Codec, TextStream
from stepwell.abc.dispatch import Dispatched, Dispatcher, Exchange, Format, Traffic
from stepwell.abc.evict import EvictionPolicy, Segment, take_pages
from stepwell.abc.prefetch import FetchProgress, PrefetchPolicy
from stepwell.abc.ranked import Group, Groups, Rank, RankedPolicy
from stepwell.abc.retain import RetentionPolicy
from stepwell.abc.route import Replica, RoutePolicy
from stepwell.abc.runner import ModelInfo, PageCopy, Row, Runner, SlotOpen, Step, StepPlan, StepResult, TableEdit
from stepwell.abc.schedule import Prefix, RunningView, SchedulePolicy, ScheduleView, WaitingView, share_out
from stepwell.abc.sink import Event, PagesRemoved, PagesStored, Sink, TierCleared
from stepwell.abc.storage import Storage
from stepwell.abc.write import Cause, Decision, Edge, WritePolicy
from stepwell.errors import AuditError, ConfigError, PeerLost, PluginError, StepwellError
from stepwell.markers import hookimpl
from stepwell.offers import Capability, Check, Context, Finding, Native, NoConfig, Offer, Part
from stepwell.types import (
    DONE,
    MISSING,
    ArenaView,
    Cached,
    Chunked,
    Done,
    Failed,
    Full,
    GroupSpec,
    Missing,
    PageKey,
    PageResult,
    PageViews,
    Sampling,
    StoredPage,
    Tier,
    TokenLogprob,
    Window,
)

__version__ = "0.1.0"

__all__ = [
    "DONE",
    "MISSING",
    "ArenaView",
    "AttentionLayers",
    "AttentionRows",
    "AttentionRun",
    "AuditError",
    "Balancer",
    "Cached",
    "Capability",
    "Cause",
    "Check",
    "Chunked",
    "Codec",
    "ConfigError",
    "Context",
    "Decision",
    "Dispatched",
    "Dispatcher",
    "Done",
    "Edge",
    "Event",
    "EvictionPolicy",
    "Exchange",
    "ExpertLoad",
    "Failed",
    "FetchProgress",
    "Finding",
    "Format",
    "Full",
    "Group",
    "GroupSpec",
    "Groups",
    "Missing",
    "ModelInfo",
    "Native",
    "NoConfig",
    "Offer",
    "PageCopy",
    "PageKey",
    "PageResult",
    "PageViews",
    "PagedAttention",
    "PagesRemoved",
    "PagesStored",
    "Part",
    "PeerLost",
    "Placement",
    "PluginError",
    "PrefetchPolicy",
    "Prefix",
    "Rank",
    "RankedPolicy",
    "Replica",
    "RetentionPolicy",
    "RoutePolicy",
    "Row",
    "Runner",
    "RunningView",
    "Sampling",
    "SchedulePolicy",
    "ScheduleView",
    "Segment",
    "Sink",
    "SlotOpen",
    "Step",
    "StepPlan",
    "StepResult",
    "StepwellError",
    "Storage",
    "StoredPage",
    "TableEdit",
    "TextStream",
    "Tier",
    "TierCleared",
    "TokenLogprob",
    "Topology",
    "Traffic",
    "WaitingView",
    "Window",
    "WritePolicy",
    "hookimpl",
    "share_out",
    "take_pages",
]


def __getattr__(name: str) -> object:
    """`stepwell.Engine`, imported when somebody asks for it: it brings in what plugins do not need."""
    if name != "Engine":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from stepwell.api import Engine

    return Engine
