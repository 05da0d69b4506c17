"""Tokens of machines. A mounted app gets no authentication from Airflow, so every router here requires one."""

from __future__ import annotations

CALLBACK_KEY_HEADER = "HUDI-CALLBACK-KEY"


def token_of_extra_params(extra_params: str) -> str | None:
    """Return `token` of RFC-43's `extra_params` (`k=v;k=v`), or None."""
    for part in extra_params.split(";"):
        key, _, value = part.partition("=")
        if key.strip() == "token":
            return value.strip()
    return None
