"""Read and parse a request's body within a limit."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel, ValidationError

from airflow_lake_provider.errors import BodyTooLargeError, MalformedRequestError

if TYPE_CHECKING:
    from fastapi import Request

PARSE_IN_THREAD_BYTES = 256 * 1024
_MOST_ERRORS = 5

_Model = TypeVar("_Model", bound=BaseModel)


async def read_body(request: Request, limit_bytes: int) -> bytes:
    """Return the body, or raise BodyTooLargeError: before the first byte when the length is announced."""
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > limit_bytes:
        raise _too_large(limit_bytes)
    chunks: list[bytes] = []
    size_bytes = 0
    async for chunk in request.stream():
        size_bytes += len(chunk)
        if size_bytes > limit_bytes:
            raise _too_large(limit_bytes)
        chunks.append(chunk)
    return b"".join(chunks)


async def parse_body(model: type[_Model], body: bytes) -> _Model:
    """Validate JSON against a wire type; raise MalformedRequestError that says what is wrong and where."""
    try:
        if len(body) > PARSE_IN_THREAD_BYTES:  # 10 MB take a tenth of a second: not in the event loop
            return await asyncio.to_thread(model.model_validate_json, body)
        return model.model_validate_json(body)
    except ValidationError as error:
        raise MalformedRequestError(_describe(error)) from error


def _too_large(limit_bytes: int) -> BodyTooLargeError:
    return BodyTooLargeError(f"the body is larger than {limit_bytes} bytes ([lake] max_notice_bytes)")


def _describe(error: ValidationError) -> str:
    details = error.errors(include_url=False, include_context=False, include_input=False)
    shown = [
        f"{'.'.join(str(part) for part in detail['loc']) or 'body'}: {detail['msg']}"
        for detail in details[:_MOST_ERRORS]
    ]
    more = f" (and {len(details) - _MOST_ERRORS} more)" if len(details) > _MOST_ERRORS else ""
    return "; ".join(shown) + more
