"""Errors towards clients, in the shape that OpenAI's clients understand."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class ErrorBody(msgspec.Struct):
    """What stands under `error`."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorObject(msgspec.Struct):
    """The body of every answer that is not a success."""

    error: ErrorBody


class ApiError(Exception):
    """Ends a request with a status and an error object."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    @property
    def body(self) -> bytes:
        """The error object as JSON."""
        return msgspec.json.encode(ErrorObject(ErrorBody(self.message, self.kind, self.param, self.code)))


def bad(param: str | None, message: str, code: str | None = None) -> ApiError:
    """The request is wrong at `param`."""
    return ApiError(400, message, param=param, code=code)


def unavailable(message: str, code: str, retry_after_s: int | None = None) -> ApiError:
    """The server cannot answer now."""
    headers = {} if retry_after_s is None else {"retry-after": str(retry_after_s)}
    return ApiError(503, message, kind="server_error", code=code, headers=headers)


def failed(message: str) -> ApiError:
    """The server should have answered and could not."""
    return ApiError(500, message, kind="server_error", code="internal_error")
