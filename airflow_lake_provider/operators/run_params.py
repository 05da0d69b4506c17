"""Params of the shipped DAGs that may stay empty."""

from __future__ import annotations

from typing import Any

from airflow.sdk import Param


def optional(kind: str, **described: Any) -> Param:
    """Return a Param that may stay empty: then its value is None.

    With an empty text as the default Airflow's form calls a required text missing, and cannot be sent.
    """
    return Param(None, type=["null", kind], **described)
