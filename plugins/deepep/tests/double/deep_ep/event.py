"""Events: what they guard is there once the caller's stream has waited."""


class EventHandle:
    def __init__(self, finish=None):
        self.finish = finish

    def current_stream_wait(self):
        finish, self.finish = self.finish, None
        if finish is not None:
            finish()


class EventOverlap:
    def __init__(self, event=None, extra_tensors=None):
        self.event = event
        self.guarded = []

    def current_stream_wait(self, release_handle=False):
        assert self.event is not None
        self.event.current_stream_wait()
        for tensor, values in self.guarded:
            tensor.copy_(values)
        self.guarded.clear()

    def later(self, values):
        """A tensor that has these values once the event has come."""
        tensor = values.clone().fill_(float("nan") if values.is_floating_point() else -77)
        self.guarded.append((tensor, values))
        return tensor

    def known(self, beside):
        """This event; of what is in the caller's stream, one that has come."""
        if not beside:
            self.current_stream_wait()
        return self
