"""Chat templates: Jinja, in the dialect that models are published with."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NoReturn

from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment


class ChatTemplate:
    """Writes a conversation as the text that a model was trained on."""

    def __init__(self, source: str, special: Mapping[str, str]) -> None:
        """`special`: the special tokens that templates name, such as `bos_token`. ValueError: no template."""
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        self._special = dict(special)
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise ValueError(f"the model's chat template cannot be read: {error}") from error

    def render(self, messages: Sequence[Mapping[str, object]]) -> str:
        """The text up to where the assistant speaks. ValueError: what the template refuses, in its words."""
        known = {**self._special, "tools": None, "documents": None}
        try:
            return self._template.render(messages=[dict(m) for m in messages], add_generation_prompt=True, **known)
        except (TemplateError, TypeError, ValueError, KeyError, AttributeError, ArithmeticError) as error:
            raise ValueError(f"the model's chat template refuses these messages: {error}") from error


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


def _to_json(value: object, ensure_ascii: bool = False, indent: int | None = None, **more: object) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **more)  # type: ignore[arg-type]
