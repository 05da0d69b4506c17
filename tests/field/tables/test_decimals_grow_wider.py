"""A decimal got more digits, and log files in the old type were not merged (`Cannot encode decimal`).

Report: https://github.com/apache/hudi/issues/11335
Report: https://github.com/apache/hudi/issues/10160
Report: https://github.com/apache/hudi/issues/8020
Report: https://github.com/apache/hudi/issues/6209
Verdict: right
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

import pytest
from kept_rows import CITIES, SCHEMA, KeptTable, Row

from airflow_lake_provider.job_contract import Outcome, Service

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pyspark.sql import SparkSession


@pytest.mark.parametrize(
    ("type", "version", "narrow", "wide"),
    [
        pytest.param("COW", 9, (10, 2), (24, 6), id="COW-9-scale"),
        pytest.param("MOR", 9, (10, 2), (24, 6), id="MOR-9-scale", marks=pytest.mark.soak),
        pytest.param("MOR", 9, (10, 2), (20, 2), id="MOR-9-precision", marks=pytest.mark.soak),
        pytest.param("MOR", 6, (5, 2), (12, 2), id="MOR-6-precision", marks=pytest.mark.soak),
    ],
)
def test_each_price_stays(
    spark: SparkSession, tmp_path: Path, type: str, version: int, narrow: tuple[int, int], wide: tuple[int, int]
) -> None:
    kept = KeptTable(spark, tmp_path / "t", type=type, version=version, columns=("id", "city", "amount", "ts", "price"))

    def write(digits: tuple[int, int], ids: Iterable[int], ts: int, price: int) -> None:
        schema = f"{SCHEMA}, price decimal({digits[0]}, {digits[1]})"
        rows: list[Row] = [(i, CITIES[i % 2], 1.0, ts, Decimal(price + i).scaleb(-digits[1])) for i in ids]
        kept.write(rows, schema=schema)

    def rewrite() -> None:
        for service in (Service.COMPACTION, Service.CLUSTERING)[type == "COW" :]:
            assert kept.serve(service).outcome is Outcome.COMPLETED
            kept.require_rows()

    write(narrow, range(12), 0, 0)
    write(narrow, range(6), 1, 100)
    write(wide, range(3), 2, 10 ** wide[0] - 100)
    kept.require_rows()
    rewrite()
    write(wide, range(2, 8), 3, 10 ** wide[0] - 200)
    kept.require_rows()
    rewrite()
