"""An engine of its own in this process.

Prompts go in as token ids and the engine's own outputs come back, so a model without a tokenizer will do. Arrivals get
their time on the engine's thread: the client's event loop cannot make them late.
"""

from __future__ import annotations

import asyncio
import uuid
from array import array
from time import perf_counter

from stepwell.assemble import Assembly
from stepwell.cache.keys import namespace, page_digests
from stepwell.config import Config
from stepwell.engine.local import LocalEngine
from stepwell.engine.messages import Output
from stepwell.errors import ConfigError
from stepwell.schedule.request import Request
from stepwell.types import Sampling
from stepwell_server.bench.asks import Answer, Ask, Language
from stepwell_server.bench.results import Target as Told
from stepwell_server.bench.samples import Sample
from stepwell_server.bench.target import Manner


class Inside:
    """A Target."""

    own_process = False

    def __init__(self, config: Config, manner: Manner) -> None:
        """Start; raises what the start raises."""
        self._manner = manner
        self._engine = LocalEngine(Assembly(config, config.load_plugins()).parts)
        self._language = Language(self._engine.hello.vocab)
        self._namespace = namespace(dict(self._engine.hello.namespace))

    async def prepare(self, longest: int | None) -> list[str]:
        hello = self._engine.hello
        most = hello.context if hello.largest is None else hello.largest
        if longest is not None and longest > most:
            raise ConfigError(
                f"prompts and answers have up to {longest} tokens together, but a request to this engine has room for "
                f"{most}; ask for fewer, or give it more pages"
            )
        return []

    async def ask(self, ask: Ask, due: float) -> Sample:
        request = self._request(ask)
        sample = Sample(due, perf_counter())
        flight = _Flight(sample, asyncio.get_running_loop())
        self._engine.submit(request, flight.take)
        try:
            async with asyncio.timeout(self._manner.patience):
                last = await flight.last
        except TimeoutError:
            self._engine.abort(request.rid)
            sample.failure, sample.end = f"not finished within {self._manner.patience:g} s", perf_counter()
            return sample
        except asyncio.CancelledError:
            self._engine.abort(request.rid)
            raise
        sample.end = sample.arrivals[-1] if sample.arrivals else perf_counter()
        sample.prompt, sample.cached, sample.output = last.prompt_tokens, last.cached.total, len(flight.tokens)
        sample.answer = Answer(tokens=flight.tokens.tobytes())
        if last.error is not None or not sample.arrivals:
            sample.failure = (last.error or "an answer without a token")[:200]
        return sample

    def told(self) -> Told:
        return Told("process", self._engine.hello.model, None, "tokens", list(self._engine.summary))

    def leave(self) -> None:
        """Nothing: whoever is cancelled aborts his request."""

    def close(self) -> None:
        self._engine.close()

    def _request(self, ask: Ask) -> Request:
        tokens, hello = self._language.tokens(ask), self._engine.hello
        return Request(
            rid=uuid.uuid4().hex,
            namespace=self._namespace,
            tokens=tokens,
            digests=page_digests(self._namespace, tokens, hello.page_size) if hello.storage else b"",
            sampling=Sampling(
                max_tokens=ask.output, temperature=self._manner.temperature, ignore_eos=self._manner.ignore_eos
            ),
        )


class _Flight:
    """Collects the outputs of one request on the engine's thread, and tells the event loop of the last."""

    def __init__(self, sample: Sample, loop: asyncio.AbstractEventLoop) -> None:
        self._sample, self._loop = sample, loop
        self.last: asyncio.Future[Output] = loop.create_future()
        self.tokens = array("i")

    def take(self, output: Output) -> None:
        if output.tokens:
            self._sample.arrivals.append(perf_counter())
            self._sample.counts.append(len(output.tokens))
            self.tokens.extend(output.tokens)
        if output.finish is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._end, output)

    def _end(self, output: Output) -> None:
        if not self.last.done():  # else nobody waits any more
            self.last.set_result(output)
