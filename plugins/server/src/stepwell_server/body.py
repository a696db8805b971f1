"""What clients may send: the bodies of both routes, checked field by field.

Every error names the field. Nothing is coerced: text where a number belongs is refused.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from stepwell_server import refused
from stepwell_server.errors import ApiError, bad

Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Share = Annotated[float, Meta(ge=0, le=1)]
MOST_CHARS = 512
"""Of a name: a routing key, a tenant, a salt."""
Label = Annotated[str, Meta(min_length=1, max_length=MOST_CHARS)]
StopText = Annotated[str, Meta(min_length=1, max_length=4096)]


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """`stream_options`."""

    include_usage: bool | None = None


class TextPart(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A part of a message's content."""

    type: str
    text: str | None = None


class Message(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One message of a conversation."""

    role: str
    content: str | list[TextPart] | None = None


class Body(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, frozen=True):
    """What both routes take. None is the same as absent."""

    model: str
    max_tokens: Count | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    n: Annotated[int, Meta(ge=1, le=4096)] | None = None
    stop: StopText | Annotated[list[StopText], Meta(max_length=4)] | None = None
    seed: Int64 | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    user: Label | None = None
    safety_identifier: Label | None = None
    prompt_cache_key: Label | None = None

    # --- extensions ---
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Share | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=10)] | None = None
    ignore_eos: bool | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=64)] | None = None
    priority: Int64 | None = None
    routing_key: Label | list[Label] | None = None
    cache_salt: Label | None = None
    cache_store: bool | None = None
    cache_ttl: Annotated[float, Meta(gt=0, le=1e9)] | None = None


class ChatBody(Body, kw_only=True, forbid_unknown_fields=True, frozen=True):
    """POST /v1/chat/completions."""

    messages: Annotated[list[Message], Meta(min_length=1)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None


class CompletionBody(Body, kw_only=True, forbid_unknown_fields=True, frozen=True):
    """POST /v1/completions."""

    prompt: str | Annotated[list[str | TokenId | list[TokenId]], Meta(min_length=1)]
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    echo: bool | None = None
    best_of: Annotated[int, Meta(ge=1, le=4096)] | None = None


B = TypeVar("B", ChatBody, CompletionBody)

ROLES = ("system", "developer", "user", "assistant")


def chat_body(raw: bytes) -> ChatBody:
    """Read the body of a chat request."""
    fields = _drop(_object(raw, ChatBody), refused.CHAT, "")
    messages = fields.get("messages")
    if isinstance(messages, list):
        fields["messages"] = [_message(message, f"messages[{i}]") for i, message in enumerate(messages)]
    body = _convert(fields, ChatBody)
    for i, message in enumerate(body.messages):
        _judge(message, f"messages[{i}]")
    if body.top_logprobs is not None and not body.logprobs:
        raise bad("top_logprobs", "top_logprobs needs logprobs to be true")
    if None not in (body.max_tokens, body.max_completion_tokens) and body.max_tokens != body.max_completion_tokens:
        raise bad("max_tokens", "max_tokens and max_completion_tokens differ; give one of them")
    if isinstance(body.routing_key, list):
        raise bad("routing_key", "a chat request takes one routing_key, not a list")
    return _common(body)


def completion_body(raw: bytes) -> CompletionBody:
    """Read the body of a completion request."""
    body = _convert(_drop(_object(raw, CompletionBody), refused.COMPLETION, ""), CompletionBody)
    if body.best_of not in (None, 1, body.n or 1):
        raise bad("best_of", "best_of is not supported beyond n: no answers are drawn and thrown away")
    if body.best_of is not None and body.best_of < (body.n or 1):
        raise bad("best_of", "best_of must not be smaller than n")
    if body.echo and body.logprobs is not None:
        raise bad("echo", "echo together with logprobs is not supported: logprobs of prompt tokens are not computed")
    return _common(body)


def _common(body: B) -> B:
    if body.stream_options is not None and not body.stream:
        raise bad("stream_options", "stream_options needs stream to be true")
    return body


def _message(value: object, at: str) -> object:
    return _drop(value, refused.MESSAGE, f"{at}.") if isinstance(value, dict) else value


def _judge(message: Message, at: str) -> None:
    if message.role not in ROLES:
        raise bad(f"{at}.role", f"{at}.role: {_short(message.role)} is not supported; have {', '.join(ROLES)}")
    if message.content is None:
        raise bad(f"{at}.content", f"{at}.content is required")
    for i, part in enumerate(message.content if isinstance(message.content, list) else ()):
        where = f"{at}.content[{i}]"
        if part.type != "text":
            raise bad(f"{where}.type", f"{where}.type: parts of type {_short(part.type)} are not supported, only text")
        if part.text is None:
            raise bad(f"{where}.text", f"{where}.text is required")


# --- JSON to structs ---------------------------------------------------------------------------------------------

_WHERE = re.compile(r"^(.*?)(?: - at `(?:key in )?\$\.?(.*)`)?$", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_LACKS = re.compile(r"Object missing required field `(.*)`")


def _object(raw: bytes, kind: type[msgspec.Struct]) -> dict[str, object]:
    try:
        value = msgspec.json.decode(raw)
    except msgspec.ValidationError as error:  # a number beyond every type; only a typed reading knows where
        raise _out_of_range(raw, kind) or bad(None, str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise bad(None, f"the body is not JSON: {error}", "invalid_json") from None
    except RecursionError:
        raise bad(None, "the body is nested too deeply", "invalid_json") from None
    if not isinstance(value, dict):
        raise bad(None, "the body must be a JSON object")
    return value


def _out_of_range(raw: bytes, kind: type[msgspec.Struct]) -> ApiError | None:
    try:
        msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        return _named(str(error), kind)
    except RecursionError:
        pass
    return None


def _drop(fields: Mapping[str, object], table: Mapping[str, tuple[object, ...]], at: str) -> dict[str, object]:
    """The fields without those that are not served, as long as these ask for nothing."""
    for name in fields.keys() & table.keys():
        if not refused.asks_nothing(fields[name], table[name]):
            raise bad(at + name, refused.why(at + name), "unsupported_parameter")
    return {name: value for name, value in fields.items() if name not in table}


def _convert(fields: Mapping[str, object], kind: type[B]) -> B:
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise _named(str(error), kind) from None
    except OverflowError:
        raise bad(None, "a number is out of range") from None


def _named(text: str, kind: type[msgspec.Struct]) -> ApiError:
    match = _WHERE.match(text)
    reason, at = (match[1], match[2] or "") if match else (text, "")
    unknown = _UNKNOWN.fullmatch(reason)
    if unknown is not None:
        field = unknown[1]
        param = f"{at}.{field}" if at else field
        if at:
            return bad(_cut(param), f"{_cut(param)} is not supported by this server", "unsupported_parameter")
        near = difflib.get_close_matches(field[:64], kind.__struct_fields__, 1)
        meant = f"; did you mean {near[0]}?" if near else ""
        return bad(_cut(param), f"unknown field {_short(field)}{meant}", "unknown_parameter")
    lacks = _LACKS.fullmatch(reason)
    if lacks is not None:
        param = f"{at}.{lacks[1]}" if at else lacks[1]
        return bad(param, f"{param} is required", "missing_required_parameter")
    return bad(_cut(at) or None, f"{_cut(at)}: {reason[:1].lower()}{reason[1:]}" if at else reason)


def _short(text: str) -> str:
    return repr(text if len(text) <= 64 else text[:61] + "...")


def _cut(text: str) -> str:
    return text if len(text) <= 128 else text[:125] + "..."
