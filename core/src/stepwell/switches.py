"""Plugins that somebody switched off: by a variable, or by `stepwell plugin disable` in a small file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from stepwell.errors import ConfigError


def disabled_file(env: Mapping[str, str]) -> Path | None:
    """Where `stepwell plugin disable` writes; None where the user has no home."""
    base = env.get("XDG_CONFIG_HOME") or (str(Path(env["HOME"]) / ".config") if env.get("HOME") else "")
    return Path(base) / "stepwell" / "disabled" if base else None


def disabled_by_file(env: Mapping[str, str]) -> frozenset[str]:
    """The plugins that file names, one a line."""
    path = disabled_file(env)
    try:
        return names(path.read_text(encoding="utf-8")) if path else frozenset()
    except FileNotFoundError:
        return frozenset()
    except OSError as error:
        raise ConfigError(f"{path}: cannot read which plugins are disabled: {error.strerror}") from error


def names(text: str) -> frozenset[str]:
    """Names between spaces, lines or commas."""
    return frozenset(text.replace(",", " ").split())
