"""A rank among threads."""

from itertools import count

wires = {}
"""By the name of a group; set by tests."""


class Wired:
    def join(self, group):
        self.rank, self.size = group.rank(), group.size()
        self.wire = wires[group.name]
        self.turns = count()
        self.live = True

    def post(self, kind, parts):
        """Send each rank its part; what is answered receives theirs, or raises with what it is told to say."""
        assert self.live, "destroyed"
        key = kind, next(self.turns)
        for to, part in enumerate(parts):
            self.wire.put(to, key, self.rank, part)

        def receive(error):
            things, missing = self.wire.take(self.rank, key)
            if missing:
                raise RuntimeError(error)
            return things

        return receive

    def exchange(self, kind, parts, error):
        return self.post(kind, parts)(error)

    def leave(self):
        """Destroying waits for all ranks."""
        assert self.live, "destroyed twice"
        self.exchange("destroy", [None] * self.size, "CUDA error: unspecified launch failure")
        self.live = False
