"""Small tables of which a test keeps all rows outside Hudi."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).parents[3]
sys.path[:0] = [str(ROOT)]

from airflow_lake_provider.job_contract import Mode, Outcome, Service, ServiceResult  # noqa: E402
from local_stack import lake_writer  # noqa: E402
from tests.support.hudi_tables import Table, run  # noqa: E402
from tests.support.spark_session import ONE_TASK  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql import types as T

Row = tuple[object, ...]

CITIES = ("Aachen", "Bilbao")
SCHEMA = "id long, city string, amount double, ts long"
COMPARE_ALL = {"lake.verify": "all"}
KEEP_ONE_COMMIT = {"hoodie.clean.commits.retained": "1"}


@dataclass
class KeptTable:
    """A table, and the rows that it must have by their ids; `schema` begins with `id`."""

    spark: SparkSession
    path: Path
    type: str = "MOR"
    version: int = 9
    options: Mapping[str, str] = field(default_factory=dict)
    schema: str | T.StructType = SCHEMA
    columns: tuple[str, ...] = ("id", "city", "amount", "ts")
    rows: dict[object, Row] = field(default_factory=dict)

    @property
    def table(self) -> Table:
        options = ONE_TASK | dict(self.options)
        return Table(lake_writer.WrittenTable("t", str(self.path), self.type, self.version, hudi_options=options))

    def write(self, rows: Iterable[Row], operation: str = "upsert", schema: str = "", **options: str) -> None:
        """Write rows as one commit, and keep their visible columns."""
        written = list(rows)
        self.append(self.spark.createDataFrame(written, schema or self.schema), operation, **options)
        self.rows |= {row[0]: row[: len(self.columns)] for row in written}

    def append(self, frame: DataFrame, operation: str = "upsert", **options: str) -> None:
        """Write a frame as one commit, and keep nothing."""
        settings = lake_writer.write_options(self.table.written, 0, None, {})
        settings |= {"hoodie.datasource.write.operation": operation, **options}
        frame.write.format("hudi").options(**settings).mode("append").save(str(self.path))

    def forget(self, ids: Iterable[object]) -> None:
        """Take rows for deleted."""
        for key in ids:
            del self.rows[key]

    def seen(self, *, metadata: bool = True) -> list[Row]:
        """Return the rows that a plain reader sees, in a fixed order."""
        read = self.spark.read.format("hudi").option("hoodie.metadata.enable", str(metadata).lower())
        return sorted(map(tuple, read.load(str(self.path)).select(*self.columns).collect()), key=repr)

    def require_rows(self) -> None:
        """Assert that readers see exactly the rows that were kept, with the metadata table and without it."""
        expected = sorted(self.rows.values(), key=repr)
        assert self.seen() == expected
        assert self.seen(metadata=False) == expected

    def serve(self, service: Service, mode: Mode = Mode.SCHEDULE_AND_EXECUTE, **options: str) -> ServiceResult:
        """Run a service, compare all that it rewrites; return its result, which is no failure."""
        settings = COMPARE_ALL | options if service in {Service.COMPACTION, Service.CLUSTERING} else options
        result = run(self.spark, self.table.request(mode, service=service, service_options=settings))
        assert result.outcome is not Outcome.FAILED, result.message
        return result


def first_rows(count: int = 20) -> list[Row]:
    """Return rows of two cities, as the first commit writes them."""
    return [(i, CITIES[i % 2], float(i), 0) for i in range(count)]
