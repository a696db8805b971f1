"""`stepwell storage`: look after the pages that a storage holds, whichever it is."""

from stepwell.cli.lazy import Lazy, LazyGroup

storage = LazyGroup(
    "storage",
    {
        "bench": Lazy("stepwell.bench.storage:command", "Put and get pages, next to the fastest that can be."),
        "verify": Lazy("stepwell.cli.storage_verify:verify", "Read every page again and check it."),
        "ls": Lazy("stepwell.cli.storage_list:ls", "List the pages."),
        "du": Lazy("stepwell.cli.storage_list:du", "Sum them up by attention group."),
        "rm": Lazy("stepwell.cli.storage_remove:rm", "Remove some pages."),
        "clear": Lazy("stepwell.cli.storage_remove:clear", "Remove all pages."),
    },
    "Look after the pages that a storage holds.",
)
