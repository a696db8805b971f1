"""The live loop around a brain: one thread that owns brain and runner, and never waits for anything but news.

News are requests, steps that completed, answers of storage. The loop collects them, lets the brain decide, carries out
what it decided, and says twice a second that it is alive. That sign comes from here and nowhere else: a front end that
hears it knows that the loop turns, whatever the requests are doing.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

from stepwell.abc.runner import Step
from stepwell.engine.actions import Action, Event, Fetch, Launch, Query, SavesEnded, StopFetch, Store
from stepwell.engine.attachment import Attachment
from stepwell.engine.controls import Controls
from stepwell.engine.feed import Feed
from stepwell.engine.messages import Abort, Control, Follow, KvEvents, Output, Pulse, Reply, Submit
from stepwell.engine.parts import Parts, open_up, release
from stepwell.engine.sinks import Sinks
from stepwell.engine.storage_io import StorageIO
from stepwell.errors import PluginError, StepwellError

PULSE_S = 0.5
SETTLE_S = 10.0
"""How long what is being saved and stored may take when the engine stops."""
CLOSE_S = 5.0
"""How long a storage call may take to return when the engine stops."""

Said = Output | Reply | Pulse | KvEvents
News = Submit | Abort | Control | Follow | Event


class Loop:
    """What one thread does: `turn` again and again until `over`, then `end`."""

    def __init__(
        self,
        parts: Parts,
        inbox: deque[News],
        wake: threading.Event,
        deliver: Callable[[Sequence[Said]], None],
        clock: Callable[[], float],
    ) -> None:
        self._inbox, self._wake, self._deliver, self._clock = inbox, wake, deliver, clock
        self._steps: deque[Step] = deque()
        self._live: set[str] = set()
        self._said: list[Said] = []
        self._events: list[Event] = []
        self._next_pulse = 0.0
        self._ticks = 0
        self._settle_by: float | None = None
        self._aborted = False
        self._parts = parts = open_up(parts, wake.set)
        self._brain, self._runner = parts.brain, parts.runner
        self._attachment = Attachment(parts, self._answered, wake.set, clock)
        self._sinks = Sinks(parts.sinks, parts.on_events)
        self._feed = Feed(parts.cache, deliver, always=bool(self._sinks))
        self._controls = Controls(parts, self._attachment, self._sinks)

    def turn(self) -> None:
        """Collect news, decide, carry out, tell; then wait for more news."""
        self._collect()
        self._decide()
        self._collect()
        if not (self._events or self._controls.pending or self._attachment.pending):
            self._wake.wait(self._patience())

    def over(self, stop_by: float | None) -> bool:
        """Whether to end now, given when what runs must have finished; None: go on."""
        if stop_by is None:
            return False
        now = self._clock()
        self._brain.drain()
        if self._live and now >= stop_by and not self._aborted:
            self._aborted = True
            self._inbox.extend(Abort(rid) for rid in self._live)
            self._settle_by = now + SETTLE_S
        if self._busy():
            if not self._live and self._settle_by is None:
                self._settle_by = now + SETTLE_S  # copies and stores are still under way
            return self._settle_by is not None and now >= self._settle_by
        return True

    def end(self, why: str, failed: str | None) -> None:
        """Answer what is in flight, release everything."""
        error = failed or why
        self._deliver([Output(rid, finish="error", error=error) for rid in sorted(self._live)])
        self._live.clear()
        self._controls.abandon(error, self._deliver)
        settled = self._attachment.close(CLOSE_S)
        self._sinks.close()
        self._feed.close()
        if self._parts.on_stop is not None:
            self._parts.on_stop(why)
        release(self._parts, storage=False, arena=settled)

    # --- news --------------------------------------------------------------------------------------------------

    def _answered(self, event: Event) -> None:
        self._inbox.append(event)
        self._wake.set()

    def _collect(self) -> None:
        """Take what came since the last time. The flag goes first: what comes later sets it again."""
        self._wake.clear()
        while self._inbox:
            news = self._inbox.popleft()
            match news:
                case Submit(request=request):
                    if request.rid in self._live:
                        taken = f"a request {request.rid!r} is in flight already"
                        self._said.append(Output(request.rid, finish="refused", error=taken))
                        continue
                    self._live.add(request.rid)
                    self._events.append(request)
                case Control():
                    self._controls.ask(news)
                case Follow(on=on):
                    self._feed.follow(on)
                case _:
                    self._events.append(news)
        self._poll()

    def _poll(self) -> None:
        """What the runner has done."""
        try:
            while self._steps and (result := self._steps[0].poll()) is not None:
                self._steps.popleft()
                self._events.append(result)
            if saved := self._runner.saved():
                self._events.append(SavesEnded(saved))
        except StepwellError:
            raise
        except Exception as error:
            raise PluginError(f"the runner failed in a step ({type(error).__name__}: {error})") from error

    def _patience(self) -> float:
        """Seconds for which nothing has to be done unless news come."""
        now = self._clock()
        wake = self._brain.next_wake(now)
        until = self._next_pulse if wake is None else min(self._next_pulse, wake)
        return max(0.0, until - now)

    # --- decisions ---------------------------------------------------------------------------------------------

    def _decide(self) -> None:
        now = self._clock()
        events, self._events = self._events, []
        if changes := self._attachment.changes():
            events = changes + events
            self._next_pulse = now  # front ends compute digests, or cease to
        actions = self._brain.tick(now, events)
        self._ticks += 1
        for action in actions:
            self._carry_out(action)
        if self._sinks or self._feed:
            happened = self._parts.cache.drain_events()
            self._sinks.put(happened)
            self._feed.put(happened)
        if now >= self._next_pulse:
            self._next_pulse = now + PULSE_S
            self._said.append(self._pulse())
            self._attachment.watch(now)
        self._said += self._controls.answers(now, idle=not self._live and not self._steps and self._brain.idle)
        if self._said:
            said, self._said = self._said, []
            self._deliver(said)

    def _carry_out(self, action: Action) -> None:
        match action:
            case Launch(plan=plan):
                try:
                    self._steps.append(self._runner.launch(plan))
                except StepwellError:
                    raise
                except Exception as error:
                    text = f"the runner cannot launch step {plan.number} ({type(error).__name__}: {error})"
                    raise PluginError(text) from error
            case Output(rid=rid, finish=finish):
                if finish is not None:
                    self._live.discard(rid)
                self._said.append(action)
            case Query(rid=rid, plan=wanted):
                self._storage().query(rid, wanted)
            case Fetch(op=fetch):
                self._storage().fetch(fetch)
            case StopFetch(id=id):
                self._attachment.stop_fetch(id)
            case Store(op=store):
                self._storage().store(store)

    def _storage(self) -> StorageIO:
        io = self._attachment.io
        assert io is not None, "a brain without storage asks nothing of it"
        return io

    def _busy(self) -> bool:
        pending = bool(self._inbox or self._events or self._steps or self._live) or not self._brain.idle
        io = self._attachment.io
        return pending or (io is not None and io.busy)

    def _pulse(self) -> Pulse:
        values = self._controls.values()
        running, waiting = int(values.pop("running", 0)), int(values.pop("waiting", 0))
        return Pulse(self._ticks, running, waiting, values, self._controls.told())
