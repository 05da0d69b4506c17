"""How many digits a number has after the point, and which columns would round it."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite

from airflow_lake_provider.replication.sinks.database_decimals import find_rounded, fraction_digits

DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 4}
FIELDS = [{"name": "union", "type": ["null", "int", "string"]}, {"name": "n", "type": ["null", DECIMAL]}]
SCHEMA = json.dumps({"type": "record", "name": "r", "fields": FIELDS})


@pytest.mark.parametrize(
    ("text", "digits"),
    [("1", 0), ("1.50", 1), ("100", 0), ("1E+3", 0), ("0.000", 0), ("-1.2345", 4), ("1e-30", 30), ("NaN", 0)],
)
def test_digits_after_the_point(text: str, digits: int) -> None:
    assert fraction_digits(Decimal(text)) == digits


@pytest.mark.parametrize(
    ("kind", "is_rounded"),
    [
        (sa.Numeric(10, 2), True), (sa.Numeric(20, 4), False), (sa.Numeric(), False), (sa.BigInteger(), True),
        (sa.Double(), False), (sa.Text(), False), (sa.JSON(), False),
    ],
)  # fmt: skip
def test_columns_of_fewer_digits(kind: sa.types.TypeEngine[object], is_rounded: bool) -> None:
    table = sa.Table("t", sa.MetaData(), sa.Column("n", kind))
    for dialect in (postgresql.dialect(), mysql.dialect()):
        assert bool(find_rounded(SCHEMA, table, dialect)) is is_rounded
    assert find_rounded(SCHEMA, table, sqlite.dialect()) == ()
    for schema in ("", '{"type":"record"}'):
        assert find_rounded(schema, table, postgresql.dialect()) == ()
