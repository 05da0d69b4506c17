"""The sink of docs/examples passes its contract, and the tables file of docs/replication.md is read, both unchanged."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from airflow_lake_provider.config.policies import ReplicationPolicy
from airflow_lake_provider.config.tables_file import parse_tables_file
from airflow_lake_provider.replication.sinks.database_columns import TYPES, type_of

if TYPE_CHECKING:
    from airflow_lake_provider.replication.sink_contract import SinkContract

DOCS = Path(__file__).parents[3] / "docs"
EXAMPLES = DOCS / "examples"

with pytest.MonkeyPatch.context() as _patch:
    _patch.syspath_prepend(EXAMPLES)
    TestFolderSink: type[SinkContract] = runpy.run_path(str(EXAMPLES / "test_folder_sink.py"))["TestFolderSink"]


def test_the_sink_is_short() -> None:
    assert len((EXAMPLES / "folder_sink.py").read_text(encoding="utf-8").splitlines()) <= 48


def test_the_tables_file_of_the_page_is_one() -> None:
    page = (DOCS / "replication.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```yaml\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    config = parse_tables_file(blocks[0], "docs/replication.md")
    kafka, mirror = config.policy_for("/lake/sales/orders", "orders").replication
    assert kafka == ReplicationPolicy(sink="kafka", topic="orders.changes", conn_id="kafka_default")
    assert (mirror.name, mirror.mode, mirror.options["table"]) == ("mirror", "latest", "public.orders")


def test_the_types_of_the_page_are_those_of_the_columns_that_the_sink_makes() -> None:
    page = (DOCS / "replication-sinks.md").read_text(encoding="utf-8")
    section = page.partition("### Types of columns\n")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| `")]
    shown = {name: kind.strip("`") for names, kind in rows for name in re.findall(r"`([^`]+)`", names)}
    plain = postgresql.dialect()
    assert shown.pop("decimal") == type_of(
        {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 4}, "postgresql"
    ).compile(plain)
    assert shown == {name: make().compile(plain) for name, make in TYPES.items()}
    assert "| any other | `TEXT` |" in section
    assert isinstance(type_of("string", "postgresql"), sa.Text)
