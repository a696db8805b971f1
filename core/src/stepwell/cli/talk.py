"""`stepwell run` and `stepwell chat`: a model on the command line, in this process."""

from __future__ import annotations

import json
import logging
import math
import re
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from stepwell.cli.options import config_options
from stepwell.errors import ConfigError

if TYPE_CHECKING:
    from stepwell.api import Engine, Options
    from stepwell.engine.answer import Completion

F = TypeVar("F", bound=Callable[..., Any])
QUIT = ("/quit", "/exit")
FLUSH = "/flush"
COMMAND = re.compile(r"/[a-z]+")


def _finite(context: click.Context, option: click.Parameter, value: float) -> float:
    if not math.isfinite(value):
        raise click.BadParameter(f"{value} is no temperature", context, option)
    return value


def _not_empty(context: click.Context, option: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    if "" in values:
        raise click.BadParameter("an empty text ends nothing", context, option)
    return values


def talk_options(command: F) -> F:
    """What both commands take."""
    for option in (
        click.option("--model", "-m", metavar="MODEL", help="A path, a name on the hub, or an alias."),
        click.option("--max-tokens", "-n", type=click.IntRange(1), default=256, show_default=True),
        click.option("--temperature", "-t", type=click.FloatRange(0), default=0.0, show_default=True, callback=_finite),
        click.option("--seed", type=int, help="Makes sampling repeatable; it matters where --temperature is above 0."),
        click.option("--verbose", "-v", is_flag=True, help="Say what was put together."),
    ):
        command = option(command)
    return config_options(command)


@click.command()
@click.argument("prompt")
@talk_options
@click.option("--chat/--no-chat", default=True, help="Use the model's chat template, where it has one.")
@click.option("--stop", multiple=True, metavar="TEXT", callback=_not_empty, help="Ends the answer; may be repeated.")
@click.option("--json", "as_json", is_flag=True, help="Print the answer and its counts as JSON.")
def run(
    prompt: str,
    chat: bool,
    stop: tuple[str, ...],
    as_json: bool,
    max_tokens: int,
    temperature: float,
    seed: int | None,
    **given: Any,
) -> None:
    """Answer PROMPT; `-` reads it from standard input."""
    text = _piped() if prompt == "-" else prompt
    options: Options = {"max_tokens": max_tokens, "temperature": temperature, "seed": seed, "stop": stop}
    with _engine(**given) as engine:
        begin = time.perf_counter()
        completion = _say(engine, [{"role": "user", "content": text}] if chat else text, options, echo=not as_json)
        if as_json:
            click.echo(json.dumps(_plain(completion, time.perf_counter() - begin)))


@click.command()
@talk_options
@click.option("--system", help="What the model is told before the conversation.")
def chat(system: str | None, max_tokens: int, temperature: float, seed: int | None, **given: Any) -> None:
    """Talk to a model; each turn says how much of it came from the cache. /flush empties it, /quit ends."""
    from stepwell.engine.answer import RequestFailed

    options: Options = {"max_tokens": max_tokens, "temperature": temperature, "seed": seed}
    messages: list[dict[str, str]] = [{"role": "system", "content": system}] if system else []
    with _engine(**given) as engine:
        click.secho(f"{engine.hello.model}: /flush empties the cache, /quit ends", dim=True, err=True)
        while (line := _ask()) is not None:
            if line == FLUSH:
                engine.flush()
                continue
            if COMMAND.fullmatch(line):
                click.secho(f"[no such command: {line}; have {FLUSH}, {', '.join(QUIT)}]", fg="red", err=True)
                continue
            messages.append({"role": "user", "content": line})
            try:
                completion = _say(engine, messages, options, echo=True)
            except KeyboardInterrupt:
                messages.pop()
                click.echo()
                continue
            except RequestFailed as error:
                messages.pop()
                click.secho(f"[not answered: {error}]", fg="red", err=True)
                continue
            messages.append({"role": "assistant", "content": completion.text})
            click.secho(_counts(completion), dim=True, err=True)


def _engine(path: str | None, sets: tuple[str, ...], model: str | None, verbose: bool) -> Engine:
    from stepwell.api import Engine

    logging.basicConfig(level=logging.INFO if verbose else logging.ERROR, format="%(name)s: %(message)s")
    settings: Mapping[str, object] = {} if model is None else {"model": model}
    engine = Engine(path, sets=sets, **settings)
    if verbose:
        for line in engine.summary:
            click.secho(line, dim=True, err=True)
    return engine


def _say(engine: Engine, prompt: str | list[dict[str, str]], options: Options, *, echo: bool) -> Completion:
    """Answer, and print the text as it comes."""
    try:
        stream = engine.stream(prompt, **options)
    except ValueError as error:
        hint = "" if isinstance(prompt, str) else "; `stepwell run --no-chat` goes without the model's chat template"
        raise ConfigError(f"the prompt cannot be used: {error}{hint}") from error
    try:
        for text in stream:
            if echo:
                click.echo(text, nl=False)
    except BaseException:
        stream.close()
        raise
    if echo:
        click.echo()
    return stream.completion


def _piped() -> str:
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"standard input is not UTF-8 text (byte {error.start})") from error


def _ask() -> str | None:
    """The next line that says something; None where the conversation ends."""
    while True:
        try:
            line = str(input("> " if sys.stdin.isatty() else "")).strip()
        except (EOFError, KeyboardInterrupt):
            return None
        if line in QUIT:
            return None
        if line:
            return line


def _counts(completion: Completion) -> str:
    cached = completion.cached
    tiers = ", ".join(
        f"{count} {tier}"
        for tier, count in (("device", cached.device), ("host", cached.host), ("storage", cached.storage))
        if count
    )
    found = f"{cached.total} cached ({tiers})" if tiers else "none cached"
    return f"[{completion.prompt_tokens} prompt tokens, {found}; {completion.completion_tokens} answered]"


def _plain(completion: Completion, seconds: float) -> dict[str, object]:
    cached = completion.cached
    return {
        "text": completion.text,
        "finish_reason": completion.finish_reason,
        "prompt_tokens": completion.prompt_tokens,
        "completion_tokens": completion.completion_tokens,
        "cached": {"device": cached.device, "host": cached.host, "storage": cached.storage},
        "seconds": round(seconds, 4),
    }
