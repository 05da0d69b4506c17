"""Tokens of machines. A mounted app gets no authentication from Airflow, so every router here requires one."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING

from airflow_lake_provider.errors import UnauthorisedError

if TYPE_CHECKING:
    from collections.abc import Iterable

CALLBACK_KEY_HEADER = "HUDI-CALLBACK-KEY"


def require_token(given: str | None, accepted: Iterable[str], *, where: str, option: str) -> None:
    """Raise UnauthorisedError unless `given` is one of the accepted tokens; compares in constant time."""
    tokens = tuple(accepted)
    if not tokens:
        raise UnauthorisedError(f"no token is configured on the server: set [lake] {option}")
    if not given:
        raise UnauthorisedError(f"no token in {where}")
    matches = [hmac.compare_digest(given.encode(), token.encode()) for token in tokens]
    if not any(matches):
        raise UnauthorisedError(f"the token in {where} is not one of [lake] {option}")


def bearer_token(header: str | None) -> str | None:
    """Return the token of an `Authorization: Bearer` header, or None."""
    scheme, _, token = (header or "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def token_of_extra_params(extra_params: str) -> str | None:
    """Return `token` of RFC-43's `extra_params` (`k=v;k=v`), or None."""
    for part in extra_params.split(";"):
        key, _, value = part.partition("=")
        if key.strip() == "token":
            return value.strip()
    return None
