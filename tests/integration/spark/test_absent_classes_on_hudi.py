"""A class of the owner's that the job does not have: one sentence before anything changes, and no useless retries."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from conftest import LOCK, Table, run

from airflow_lake_provider.job_contract import FailureKind, Mode, Service
from airflow_lake_provider.shared.hudi_settings import LOCK_PROVIDER, MERGER_CLASSES

if TYPE_CHECKING:
    from conftest import MakeTable
    from pyspark.sql import SparkSession

ABSENT = "com.acme.Absent"
CUSTOM_MERGES = {
    "hoodie.record.merge.mode": "CUSTOM",
    "hoodie.record.merge.strategy.id": "1897ef5f-18bc-4557-939c-9d6a8afd1519",
}
OF_TABLE = {
    "hoodie.compaction.payload.class": {"hoodie.compaction.payload.class": ABSENT},
    "hoodie.table.keygenerator.class": {
        "hoodie.table.keygenerator.class": ABSENT,
        "hoodie.table.keygenerator.type": "USER_PROVIDED",
    },
    MERGER_CLASSES: CUSTOM_MERGES,
}
"""What the table itself says, by the setting that is named."""
SETTINGS = (MERGER_CLASSES, LOCK_PROVIDER, "hoodie.index.class", "hoodie.bulkinsert.user.defined.partitioner.class")


def say(table: Table, properties: dict[str, str]) -> None:
    """Change what the table says of itself."""
    file = table.path / ".hoodie" / "hoodie.properties"
    kept = [line for line in file.read_text("utf-8").splitlines() if line.split("=")[0] not in properties]
    file.write_text("\n".join([*kept, *(f"{key}={value}" for key, value in properties.items()), ""]), "utf-8")
    file.with_name(".hoodie.properties.crc").unlink(missing_ok=True)


@pytest.mark.parametrize("key", [*OF_TABLE, *SETTINGS[1:]])
def test_service_is_refused_before_it_leaves_a_plan(spark: SparkSession, make_table: MakeTable, key: str) -> None:
    table = make_table()
    say(table, OF_TABLE.get(key, {}))
    options = LOCK | ({key: ABSENT} if key in SETTINGS else {})
    before = table.files()
    request = table.request(Mode.SCHEDULE_AND_EXECUTE, service=Service.COMPACTION, options=options)
    refused = run(spark, request)
    assert refused.failure_kind is FailureKind.REFUSED, refused.message
    place = "hudi_options" if key in SETTINGS else "hoodie.properties"
    assert refused.message == (
        f"table {table.written.name} at {table.path}: the class {ABSENT} ({key} of {place}) is not on the class path "
        "of this job: give the jobs of this table the jar with that class (`spark_conf: {spark.jars: <path>}`)"
    )
    assert table.files() == before


def test_clean_needs_no_class_that_merges_rows(spark: SparkSession, make_table: MakeTable) -> None:
    table = make_table()
    say(table, OF_TABLE["hoodie.compaction.payload.class"])
    cleaned = run(spark, table.request(Mode.SCHEDULE_AND_EXECUTE, service=Service.CLEAN))
    assert cleaned.failure_kind is None, cleaned.message
