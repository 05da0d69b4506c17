"""What columns and sessions of MySQL and MariaDB need, by rules alone; `test_mariadb.py` asks a server."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from airflow_lake_provider.replication.sinks.database import _checkpoints
from airflow_lake_provider.replication.sinks.database_columns import (
    Waits,
    _print_session,
    find_misfit,
    to_column_value,
    types_of,
)


@pytest.mark.parametrize("dialect", ["mysql", "mariadb"])
def test_session_is_in_utc_strict_and_waits_no_longer_than_the_entry_says(dialect: str) -> None:
    said = _print_session(dialect, Waits(5.0, 60.0))
    assert "time_zone = '+00:00'" in said
    assert "STRICT_ALL_TABLES" in said
    assert "innodb_lock_wait_timeout = 5, lock_wait_timeout = 5" in said


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity"])
def test_number_that_is_none_there_is_refused(value: str) -> None:
    column = sa.Column("f", mysql.DOUBLE())
    with pytest.raises(ValueError, match="no NaN and no infinity"):
        to_column_value(column, value, keeps_decimals=True)
    assert to_column_value(column, Decimal("1e300"), keeps_decimals=True) == 1e300


def test_statement_to_run_is_one_of_mysql() -> None:
    table = sa.Table("t", sa.MetaData(), sa.Column("n", sa.Integer), sa.Column("s", sa.String(3)))
    assert find_misfit(table, {"n": 2**40}, "mysql").endswith("run alter table t modify column n bigint")
    assert find_misfit(table, {"s": "long"}, "mariadb").endswith("run alter table t modify column s text")
    assert find_misfit(table, {"n": 2**40}, "postgresql").endswith("run alter table t alter column n type bigint")


def test_columns_that_are_to_be_added_hold_what_rows_have() -> None:
    micros = {"type": "long", "logicalType": "timestamp-micros"}
    kinds: dict[str, Any] = {"at": micros, "text": "string", "raw": "bytes", "n": "long"}
    schema = {"type": "record", "name": "r", "fields": [{"name": name, "type": kind} for name, kind in kinds.items()]}
    found = types_of(json.dumps(schema), "mysql")
    shown = {name: kind.compile(mysql.dialect()) for name, kind in found.items()}
    assert shown == {"at": "DATETIME(6)", "text": "LONGTEXT", "raw": "LONGBLOB", "n": "BIGINT"}
    # A checkpoint has the schema of a wide table.
    assert _checkpoints.c.checkpoint.type.compile(mysql.dialect()) == "LONGTEXT"
