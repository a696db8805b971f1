"""Conformance kits: subclass one class, write one fixture, and the contract is tested.

from stepwell_testkit import StorageKit

class TestScratch(StorageKit):
    @pytest.fixture
    def storage(self, tmp_path, context):
        return ScratchStorage(ScratchConfig(tmp_path), context)
"""

from stepwell_testkit.arena import KitArena
from stepwell_testkit.attention import AttentionAdapter, PagedAttentionKit, PlainAdapter
from stepwell_testkit.balance import BalanceKit
from stepwell_testkit.conform import Verdict, conform
from stepwell_testkit.context import KitContext
from stepwell_testkit.dispatch import DispatchKit
from stepwell_testkit.eviction import EvictionKit
from stepwell_testkit.faults import Faults, FaultyStorage
from stepwell_testkit.kit import Kit, KitError
from stepwell_testkit.pool import Processes
from stepwell_testkit.retention import RetentionKit
from stepwell_testkit.route import RouteKit
from stepwell_testkit.schedule import KitRequest, KitRunning, KitView, ScheduleKit
from stepwell_testkit.storage import StorageKit
from stepwell_testkit.world import Adapter, NumpyAdapter, Threads, TorchAdapter, World
from stepwell_testkit.write import WriteKit

__all__ = [
    "Adapter",
    "AttentionAdapter",
    "BalanceKit",
    "DispatchKit",
    "EvictionKit",
    "Faults",
    "FaultyStorage",
    "Kit",
    "KitArena",
    "KitContext",
    "KitError",
    "KitRequest",
    "KitRunning",
    "KitView",
    "NumpyAdapter",
    "PagedAttentionKit",
    "PlainAdapter",
    "Processes",
    "RetentionKit",
    "RouteKit",
    "ScheduleKit",
    "StorageKit",
    "Threads",
    "TorchAdapter",
    "Verdict",
    "World",
    "WriteKit",
    "conform",
]
