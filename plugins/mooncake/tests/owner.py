"""A process that gives a segment to a store: MASTER MIB MARKER [OFFLOAD_FOLDER]. It makes MARKER once it is there."""

import sys
import time
from pathlib import Path

from stepwell_mooncake import MooncakeConfig
from stepwell_mooncake.client import connect

master, mib, marker, *offload = sys.argv[1:]
config = MooncakeConfig(master, segment_gib=int(mib) / 1024, offload=Path(offload[0]) if offload else None)
store = connect(config, 0)
Path(marker).touch()
while True:
    time.sleep(60)
