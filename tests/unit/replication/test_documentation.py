"""The sink of docs/replication.md is run as it stands there, by the contract as it stands there."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import Any

from airflow_lake_provider.config.policies import ReplicationPolicy
from airflow_lake_provider.config.tables_file import parse_tables_file
from airflow_lake_provider.replication.sink_contract import SinkContract

PAGE = (Path(__file__).parents[3] / "docs" / "replication.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


_sink, _contract = blocks("python")
_names: dict[str, Any] = {"json": json, "FOLDER": Path(tempfile.mkdtemp(prefix="lake-sink-"))}
exec(compile(_sink + _contract, "docs/replication.md", "exec"), _names)

TestFolderSink: type[SinkContract] = _names["TestFolderSink"]


def test_the_sink_is_short() -> None:
    assert len(_sink.strip().splitlines()) <= 46


def test_the_tables_file_of_the_page_is_one() -> None:
    config = parse_tables_file(blocks("yaml")[0], "docs/replication.md")
    kafka, mirror = config.policy_for("/lake/sales/orders", "orders").replication
    assert kafka == ReplicationPolicy(sink="kafka", topic="orders.changes", conn_id="kafka_default")
    assert (mirror.name, mirror.mode, mirror.options["table"]) == ("mirror", "latest", "public.orders")
