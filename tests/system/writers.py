"""A writer's requests, sent over HTTP to a running API server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from local_stack.airflow import LocalAirflow

SMALL_COMMIT = ({"fileId": "a", "path": "p/a.parquet", "totalWriteBytes": 100},)


def send_notice(
    airflow: LocalAirflow, table: Path, instant: str, stats: Sequence[Mapping[str, Any]] = SMALL_COMMIT
) -> httpx.Response:
    """Send what Hudi's commit callback sends."""
    headers, body = {"HUDI-CALLBACK-KEY": airflow.callback_token}, notice_body(table, instant, stats)
    # With TLS at hand httpx would read all certificates for each notice.
    return httpx.post(airflow.callback_url, json=body, headers=headers, timeout=10, verify=False)


def notice_body(table: Path, instant: str, stats: Sequence[Mapping[str, Any]] = SMALL_COMMIT) -> dict[str, Any]:
    """Return the body that Hudi's commit callback sends."""
    return {
        "commitTime": instant,
        "tableName": table.name,
        "basePath": str(table),
        "hoodieWriteStat": list(stats),
        "commitActionType": {"empty": False, "present": True},
        "extraMetadata": {"empty": False, "present": True},
    }
