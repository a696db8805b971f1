"""`stepwell bench`: each measurement is a command of its own."""

from stepwell.cli.lazy import Lazy, LazyGroup

bench = LazyGroup(
    "bench",
    {
        "branches": Lazy("stepwell.bench.branches:command", "Keep windows where sessions grow and branch."),
        "index": Lazy("stepwell.bench.index:command", "Match, publish and evict in the prefix tree."),
        "storage": Lazy("stepwell.bench.storage:command", "Put and get pages in a storage backend."),
        "windows": Lazy("stepwell.bench.windows:command", "Keep sliding-window layers as windows, or whole."),
    },
    "Measure parts of the cache.",
)
