"""A writer's requests, sent over HTTP to a running API server."""

from __future__ import annotations

from pathlib import Path

import httpx

from local_stack.airflow import LocalAirflow


def send_notice(airflow: LocalAirflow, table: Path, instant: str, timeout_s: float = 10.0) -> httpx.Response:
    """Send what Hudi's commit callback sends."""
    body = {
        "commitTime": instant,
        "tableName": table.name,
        "basePath": str(table),
        "hoodieWriteStat": [{"fileId": "a", "path": "p/a.parquet", "totalWriteBytes": 100}],
        "commitActionType": {"empty": False, "present": True},
        "extraMetadata": {"empty": False, "present": True},
    }
    headers = {"HUDI-CALLBACK-KEY": airflow.callback_token}
    return httpx.post(airflow.callback_url, json=body, headers=headers, timeout=timeout_s)
