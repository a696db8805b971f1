"""The one class that an author subclasses: every theme of the contract together."""

from __future__ import annotations

from stepwell_testkit.storage.answers import Answers
from stepwell_testkit.storage.calls import Calls
from stepwell_testkit.storage.damage import Damage
from stepwell_testkit.storage.deleting import Deleting
from stepwell_testkit.storage.lasting import Lasting
from stepwell_testkit.storage.listing import Listing
from stepwell_testkit.storage.memory import Memory
from stepwell_testkit.storage.outage import Outage
from stepwell_testkit.storage.room import Room
from stepwell_testkit.storage.sharing import Sharing


# The last runs first.
class StorageKit(Outage, Damage, Room, Sharing, Lasting, Listing, Deleting, Calls, Memory, Answers):
    """Tests a `Storage`: give the fixture `storage`, a new one that holds nothing else a test would notice.

    A claim of PERSISTENT or SHARED needs the fixture `reopen` too: a callable that makes one more instance on the same
    pages. A claim of EVICTS needs `limit_bytes`: the store that the fixture gives is full by then.

    More is tested where more is given: `server`, an object with `kill`, `start`, `freeze`, `thaw` and `restart` such as
    `stepwell_testkit.server.Server`, that `storage` talks to; `damage(key, how)`, which spoils the stored bytes of a
    page, `how` being "short" or "flipped"; `fill_up()`, a context manager in which the store has no room left.
    """
