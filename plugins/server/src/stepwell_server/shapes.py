"""What clients get: the objects of both routes, whole and in chunks, as the API they follow has them."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType


class Tiers(msgspec.Struct):
    """Extension: cached tokens by the tier they came from."""

    device: int = 0
    host: int = 0
    storage: int = 0


class PromptDetails(msgspec.Struct):
    """`usage.prompt_tokens_details`."""

    cached_tokens: int
    stepwell: Tiers


class Usage(msgspec.Struct):
    """`usage`."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


class TopLogprob(msgspec.Struct):
    """One of the most likely tokens at a place of a chat answer."""

    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(TopLogprob):
    """A token of a chat answer."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    """`logprobs` of a chat choice."""

    content: list[ChatLogprob]
    refusal: None = None


class ChatMessage(msgspec.Struct):
    """The assistant's message."""

    role: str
    content: str
    refusal: None = None


class ChatChoice(msgspec.Struct):
    """One answer to a chat."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: str


class Chat(msgspec.Struct, tag_field="object", tag="chat.completion"):
    """`chat.completion`."""

    id: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage


class ChatDelta(msgspec.Struct):
    """What a chunk adds to a message."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct):
    """One choice's share of a chunk."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None


class ChatChunk(msgspec.Struct, tag_field="object", tag="chat.completion.chunk"):
    """`chat.completion.chunk`."""

    id: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType | None = UNSET


class TextLogprobs(msgspec.Struct):
    """`logprobs` of a completion choice."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]] | None
    text_offset: list[int]


class TextChoice(msgspec.Struct):
    """One completion, or its share of a chunk."""

    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: str | None


class Text(msgspec.Struct, tag_field="object", tag="text_completion"):
    """`text_completion`, whole and in chunks."""

    id: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[TextChoice]
    usage: Usage | UnsetType | None = UNSET


class Model(msgspec.Struct, tag_field="object", tag="model"):
    """An entry of /v1/models."""

    id: str
    created: int
    max_model_len: int
    owned_by: str = "stepwell"


class Models(msgspec.Struct, tag_field="object", tag="list"):
    """/v1/models."""

    data: list[Model]
