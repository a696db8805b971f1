"""A server with OpenAI's API: anybody's behind a URL, or a `stepwell serve` of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import perf_counter

import msgspec

from stepwell.errors import ConfigError
from stepwell_server.bench.asks import Answer, Ask, Language, Span, ids_of
from stepwell_server.bench.events import Stream, refusal
from stepwell_server.bench.http import Address, Broken, HttpClient, retry_after
from stepwell_server.bench.results import Target as Told
from stepwell_server.bench.samples import Sample
from stepwell_server.bench.target import Manner

VOCAB = 32_000
"""Most models have as many tokens at least."""
TRIALS = (16, 144)
"""Words of the two prompts by which it is found out how many tokens a word is; what both have besides drops out."""
BUSY = (408, 429)
"""Refusals that say nothing of the request."""


class Outside:
    """A Target."""

    own_process = True

    def __init__(
        self,
        address: Address,
        manner: Manner,
        *,
        prompts_as: str,
        model: str | None = None,
        key: str | None = None,
        vocab: int | None = None,
        kind: str = "url",
        release: Callable[[], None] = lambda: None,
    ) -> None:
        """`release` ends the server where it is our own."""
        self._http = HttpClient(address, key)
        self._manner, self._prompts_as, self._model, self._kind = manner, prompts_as, model, kind
        self._vocab, self._release = vocab or VOCAB, release
        self._language = Language(self._vocab)

    async def prepare(self, longest: int | None) -> list[str]:
        notes = []
        if self._model is None:
            self._model = await self._first_model()
        trials = [await self._trial(words) for words in TRIALS]
        few, many = (one.prompt for one in trials)
        failed = next((one.failure for one in trials if one.failure), None)
        if failed is not None:
            notes.append(f"a trial request failed: {failed}")
        if self._prompts_as != "tokens":
            if failed is None and few is not None and many is not None and many > few:
                words = (TRIALS[1] - TRIALS[0]) / (many - few)
                self._language = Language(self._vocab, words)
            else:
                notes.append("the server does not tell prompt tokens: lengths of prompts are in words")
        if failed is None and any(one.cached is None for one in trials):
            notes.append("the server does not tell cached tokens")
        return notes

    async def ask(self, ask: Ask, due: float) -> Sample:
        body = self._body(ask)
        sample = Sample(due, perf_counter())
        stream = Stream(sample)
        try:
            async with asyncio.timeout(self._manner.patience):
                await self._put(body, sample, stream)
        except TimeoutError:
            what = "finished" if sample.arrivals else "begun"
            sample.failure = f"not {what} within {self._manner.patience:g} s"
        except Broken as error:
            sample.failure = str(error)
        if sample.failure is not None:
            sample.end = perf_counter()
        sample.answer = Answer(text="".join(stream.texts))
        return sample

    def told(self) -> Told:
        return Told(self._kind, self._model or "", self._http.address.url, self._prompts_as, [])

    def leave(self) -> None:
        self._http.close()

    def close(self) -> None:
        self._release()

    async def _put(self, body: bytes, sample: Sample, stream: Stream) -> None:
        path = "/chat/completions" if self._prompts_as == "chat" else "/completions"
        answer = await self._http.ask("POST", path, body, stream.take)
        if answer.streams:
            stream.end(answer.at)
            return
        sample.retry_after = retry_after(answer.headers)
        sample.failure = refusal(answer.status, bytes(answer.body), sample.retry_after)

    def _body(self, ask: Ask) -> bytes:
        fields: dict[str, object] = {
            "model": self._model,
            "max_tokens": ask.output,
            "temperature": self._manner.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self._manner.ignore_eos:
            fields["ignore_eos"] = True
        match self._prompts_as:
            case "chat":
                fields["messages"] = self._language.messages(ask)
            case "text":
                fields["prompt"] = self._language.text(ask)
            case _:
                fields["prompt"] = ids_of(self._language.tokens(ask))
        return msgspec.json.encode(fields)

    async def _trial(self, words: int) -> Sample:
        """A short request. ConfigError where the server is not there, or will not have it so."""
        sample = await self.ask(Ask((Span(f"trial/{words}", words),), 2), perf_counter())
        failure = sample.failure or ""
        if failure.startswith("no connection"):
            raise ConfigError(f"{self._http.address.url}: {failure}; is a server there?")
        if failure.startswith("HTTP 4") and not failure.startswith(tuple(f"HTTP {status}" for status in BUSY)):
            hint = "; --no-ignore-eos leaves that field out" if "ignore_eos" in failure else ""
            if self._prompts_as == "tokens" and "token" in failure:
                hint = f"; ids up to {self._vocab} were drawn: --vocab says how many tokens the model has"
            raise ConfigError(f"{self._http.address.url} refused a trial request: {failure}{hint}")
        return sample

    async def _first_model(self) -> str:
        where = f"{self._http.address.url}/models"
        try:
            async with asyncio.timeout(self._manner.patience):
                answer = await self._http.ask("GET", "/models")
        except (Broken, TimeoutError) as error:
            raise ConfigError(f"{where}: {error or 'no answer'}; is a server there?") from None
        try:
            return str(msgspec.json.decode(answer.body)["data"][0]["id"])
        except (msgspec.DecodeError, LookupError, TypeError):
            why = f"HTTP {answer.status}" if answer.status != 200 else "no list of models"
            raise ConfigError(f"{where}: {why}; name the model with --model, a key with --api-key-env") from None
