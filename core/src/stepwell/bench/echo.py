"""`python -m stepwell.bench.echo`: a process that answers so many bytes with the time at which it had them."""

from __future__ import annotations

import struct
import sys
import time

from stepwell.engine.spawned import ours

SIZE = struct.Struct("<I")
STAMP = struct.Struct("<q")


def main() -> int:
    """Echo until the other end is gone."""
    end = ours("stepwell.bench.echo", None)
    buffer = bytearray(1 << 20)
    have = 0
    while got := end.recv_into(memoryview(buffer)[have:]):
        have += got
        if have >= SIZE.size and have >= SIZE.size + SIZE.unpack_from(buffer)[0]:
            end.sendall(STAMP.pack(time.monotonic_ns()))
            have = 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
