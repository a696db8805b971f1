"""Fields that OpenAI defines and this server does not serve, and the values with which they ask for nothing.

A field that is not served is refused rather than ignored: an answer that looks right and is not what was asked for is
worse than an error. Null, and the values below, ask for nothing and pass.
"""

from __future__ import annotations

COMMON: dict[str, tuple[object, ...]] = {
    "logit_bias": ({},),
    "metadata": ({},),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "prompt_cache_retention": (),
}
CHAT: dict[str, tuple[object, ...]] = COMMON | {
    "audio": (),
    "function_call": ("none",),
    "functions": ([],),
    "modalities": (["text"],),
    "moderation": (),
    "parallel_tool_calls": (False,),
    "prediction": (),
    "reasoning_effort": ("none",),
    "response_format": ({"type": "text"},),
    "tool_choice": ("none",),
    "tools": ([],),
    "verbosity": ("medium",),
    "web_search_options": (),
}
COMPLETION: dict[str, tuple[object, ...]] = COMMON | {"suffix": ("",)}
MESSAGE: dict[str, tuple[object, ...]] = {
    "annotations": ([],),
    "audio": (),
    "function_call": (),
    "name": (),
    "reasoning_content": (),
    "refusal": (),
    "tool_call_id": (),
    "tool_calls": ([],),
}

INSTEAD = {
    "prompt_cache_retention": "use cache_ttl",
    "reasoning_effort": "the chat template decides",
}
"""What to do instead, where there is something."""


def asks_nothing(value: object, nothing: tuple[object, ...]) -> bool:
    """Whether a field may be dropped; False and 0 are told apart."""
    return value is None or any(type(value) is type(one) and value == one for one in nothing)


def why(field: str) -> str:
    """The refusal of a field."""
    instead = INSTEAD.get(field)
    return f"{field} is not supported by this server" + (f"; {instead}" if instead else "")
