"""The process that reads large notices: a body can name millions of values, of which the manager needs three.

A parser in the API server would hold the interpreter's lock for seconds, and all other requests would wait.
"""

from __future__ import annotations

import json
from typing import Any

from airflow_lake_provider.errors import DamagedFileError
from airflow_lake_provider.hudi.decoding_process import run

FIELDS = ("commitTime", "tableName", "basePath")


def read_fields(content: bytes, name: str) -> dict[str, Any]:
    """Return those fields of a notice that the manager reads, where they are texts. Raises DamagedFileError."""
    try:
        body = json.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise DamagedFileError(f"{name}: Invalid JSON: {error}") from error
    if not isinstance(body, dict):
        raise DamagedFileError(f"{name}: Input should be an object")
    return {field: body[field] for field in FIELDS if isinstance(body.get(field), str)}


if __name__ == "__main__":
    run(read_fields)
