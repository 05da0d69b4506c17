"""Execute a plan so that it proves itself: write the files, compare them with what a reader saw, and only then commit.

The new files are read without Hudi, by Spark's own Parquet reader. The log file of a log compaction cannot be: Hudi's
reader merges it with all that it merged before, as it will once the file is committed.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import functions as F
from pyspark.sql import types as T

from airflow_lake_provider.job_contract import REWRITES, VERIFY, RowsDiffer, Service, Verify
from airflow_lake_provider.shared.hudi_settings import MERGER_CLASSES
from airflow_lake_provider.shared.plain_text import first_line
from lake_jobs.driver.files import readable_bytes
from lake_jobs.hudi.java_errors import is_refused_question
from lake_jobs.hudi.plans import read_plan
from lake_jobs.replication.file_slices import FIRST_VERSION_OF_OWN_LOGS
from lake_jobs.services.context import seconds_since
from lake_jobs.verify import rewrite
from lake_jobs.verify.block import leave_block
from lake_jobs.verify.counts import count_suspects
from lake_jobs.verify.kept_savings import KeptSavings
from lake_jobs.verify.plan_inputs import check_inputs
from lake_jobs.verify.rows import NO_ROWS, UNIT, Fingerprint, find_differing_keys, fingerprints
from lake_jobs.verify.sample import (
    MAX_LISTED,
    Group,
    Unit,
    choose_units,
    costs_by_read,
    costs_by_written,
    draw_order,
    explain_none,
    files_of_plan,
)
from lake_jobs.verify.seen_before import AS_WRITTEN, PARTITION_PATH, SeenBefore

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from lake_jobs.hudi.table import LoadedTable
    from lake_jobs.services.context import ServiceContext

RECORD_KEY = "_hoodie_record_key"
_UNITS_PER_JOB = 100
_SIDES = 2


class RowsDifferError(Exception):
    """New files have other rows than a reader saw; nothing was committed, and the table is blocked."""


@dataclass(frozen=True, slots=True)
class RowDifference:
    """The first unit whose rows differ, with up to five keys."""

    unit: Unit
    before: Fingerprint
    after: Fingerprint
    keys: tuple[str, ...]

    def __str__(self) -> str:
        """Return it in words."""
        keys = f"; keys: {', '.join(self.keys)}" if self.keys else ""
        return f"{self.unit.name}: a reader saw {self.before.rows} rows, the new files have {self.after.rows}{keys}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """How many rows of how many units were compared, and the first difference."""

    units: int
    of_units: int
    rows: int
    size_bytes: int
    difference: RowDifference | None = None
    left_out: tuple[str, ...] = ()
    """Columns whose values were not compared."""
    why_none: str = ""
    """Why no unit was compared."""

    def __str__(self) -> str:
        """Return it in words."""
        if self.why_none:
            return f"compared none of {self.of_units} rewritten parts with what readers saw: {self.why_none}"
        found = "equal" if self.difference is None else "they differ"
        what = f"{self.units} of {self.of_units} rewritten parts, {self.rows} rows ({readable_bytes(self.size_bytes)})"
        but = f" (not compared, as it is stored as bytes: {', '.join(self.left_out)})" if self.left_out else ""
        return f"compared {what} with what readers saw: {found}{but}"


@dataclass(frozen=True, slots=True)
class Means:
    """How much of a rewrite is compared."""

    verify: Verify
    work_s: float
    """Work that it took to write the files, in core seconds."""
    left_s: float
    """Work that a sample may take, in core seconds."""


def find_obstacle(state: LoadedTable, service: Service) -> str:
    """Return why what a service rewrites of a table cannot be compared; empty when it can."""
    config = state.meta_client.getTableConfig()
    base_format = str(config.getBaseFileFormat().name())
    if base_format != "PARQUET":
        return f"its base files are {base_format}, and Parquet ones are compared only"
    if config.getBootstrapBasePath().isPresent():
        return "it is bootstrapped: part of its rows lies in another folder"
    if service is Service.LOGCOMPACTION and state.table_version < FIRST_VERSION_OF_OWN_LOGS:
        return f"in tables of version {state.table_version} no reader sees the blocks of a log file before their commit"
    return ""


def execute(context: ServiceContext, service: Service, client: Any, instant: str, execute_unseen: Any) -> str:
    """Execute a plan; return how much was compared, in words, empty where the service rewrites no rows.

    Raises RowsDifferError, and then the plan is not committed and the table is marked; LogsCutError, TableChangedError
    or PlanOvertakenError, and then the plan is not committed; Py4JJavaError as Hudi does.
    """
    verify = Verify(context.request.options.get(VERIFY, Verify.SAMPLE))
    if service not in REWRITES:
        execute_unseen(client, instant)
        return ""
    suspects = frozenset[Group]()
    if verify is not Verify.OFF:
        suspects = check_inputs(context.spark, context.first_state, client, service, instant)
    obstacle = find_obstacle(context.first_state, service)
    if verify is Verify.OFF or obstacle:
        # In two steps as well: what the commit's settings were derived from is read again in between.
        rewrite.commit_files(context, client, rewrite.write_files(context.spark, client, service, instant))
        return f"nothing was compared: {obstacle}" if obstacle else ""
    started = time.monotonic()
    written = rewrite.write_files(context.spark, client, service, instant)
    work_s = _core_seconds(context.spark, len(written.written), started)
    kept = KeptSavings(context.spark, context.job.base_path, service)
    started = time.monotonic()
    try:
        means = Means(verify, work_s, kept.savings.offer(work_s))
        merger = {key: value for key, value in context.settings.items() if key == MERGER_CLASSES}
        compared = compare(context.spark, context.read_table_state(), written, means, suspects, merger)
    except Py4JJavaError as error:
        if not is_refused_question(context.spark, error):
            raise
        # Spark refuses the question before it reads a row, by the types of columns: that says nothing of the rows, and
        # a table with such a column would never be rewritten again.
        reason = first_line(error.java_exception.getMessage())
        context.log_progress(f"{service} {instant}: {reason}")
        rewrite.commit_files(context, client, written)
        return f"nothing was compared: Spark cannot compare the columns ({reason})"
    context.log_progress(f"{service} {instant}: {compared}, in {seconds_since(started)}")
    if verify is Verify.SAMPLE:
        kept.spend(work_s, _core_seconds(context.spark, _SIDES * compared.units, started))
    if compared.difference is not None:
        leave_block(context.spark, context.job.base_path, RowsDiffer(service, instant, f"{compared.difference}"))
        raise RowsDifferError(
            f"it would have changed what readers see, and was not committed: {compared.difference}; no service "
            "rewrites this table until the block is lifted (`airflow lake doctor`, rows_differ)"
        )
    rewrite.commit_files(context, client, written)
    return f"{compared}"


def _core_seconds(spark: SparkSession, tasks: int, started: float) -> float:
    """Return the work of so many tasks since a time of the monotonic clock."""
    return min(int(spark.sparkContext.defaultParallelism), max(1, tasks)) * (time.monotonic() - started)


def compare(
    spark: SparkSession,
    state: LoadedTable,
    written: rewrite.UncommittedRewrite,
    means: Means,
    suspects: frozenset[Group],
    merger: Mapping[str, str],
) -> Comparison:
    """Compare the new files of a rewrite with what a reader saw when it was planned; `suspects` in any case.

    `merger` is the reader's setting for a table whose owner merges rows by a class of their own.
    """
    planned = files_of_plan(read_plan(spark, state, written.service, written.instant))
    units = rewrite.list_units(written, planned)
    costs_s = _find_costs_s(spark, state, written, units, means.work_s)
    chosen = choose_units(units, means.verify, written.instant, costs_s, means.left_s, suspects)
    left = [unit for unit in units if unit not in chosen]
    if left and written.service is not Service.LOGCOMPACTION:
        suspects |= count_suspects(spark, state, left, planned, written.written)
        chosen = choose_units(units, means.verify, written.instant, costs_s, means.left_s, suspects)
    if units and not chosen:
        return Comparison(0, len(units), 0, 0, why_none=explain_none(written.instant, costs_s, means.left_s))
    seen = SeenBefore(spark, state, written.instant, merger)
    rows = 0
    left_out = frozenset[str]()
    for start in range(0, len(chosen), _UNITS_PER_JOB):
        some = chosen[start : start + _UNITS_PER_JOB]
        if written.service is Service.LOGCOMPACTION:
            after: DataFrame | None = seen.rows(some, with_new_logs=True)
        else:
            after = read_new_files(spark, state.base_path, some)
        left_out |= stored_as_bytes(seen.layout.schema, after)
        counted, difference = _compare_units(state, seen, some, after)
        rows += counted
        if difference is not None:
            return Comparison(start + len(some), len(units), rows, _size_of(chosen), difference)
    return Comparison(len(chosen), len(units), rows, _size_of(chosen), left_out=tuple(sorted(left_out)))


def _find_costs_s(
    spark: SparkSession, state: LoadedTable, written: rewrite.UncommittedRewrite, units: Sequence[Unit], work_s: float
) -> dict[Unit, float]:
    """Return what the comparison of units costs, in core seconds; of a log compaction of some units alone."""
    if written.service is not Service.LOGCOMPACTION:
        return costs_by_written(units, work_s)
    some = draw_order(units, written.instant)[:MAX_LISTED]
    return costs_by_read(SeenBefore(spark, state, written.instant).lengths(some))


def _size_of(units: Sequence[Unit]) -> int:
    return sum(unit.size_bytes for unit in units)


def _compare_units(
    state: LoadedTable, seen: SeenBefore, units: Sequence[Unit], after: DataFrame | None
) -> tuple[int, RowDifference | None]:
    before = seen.rows(units)
    fields = compared_fields(state, seen.layout.schema, after)
    sides = [before] if after is None else [before, after]
    found = fingerprints(sides, fields)
    of_before = found[0]
    of_after = found[1] if after is not None else {}
    rows = sum(each.rows for each in of_before.values())
    for at, unit in enumerate(units):
        old = of_before.get(at, NO_ROWS)
        new = of_after.get(at, NO_ROWS)
        if old != new:
            key = _key_of(state, seen.layout.schema)
            some = before.limit(0) if after is None else after
            keys = find_differing_keys(before.where(f"{UNIT} = {at}"), some.where(f"{UNIT} = {at}"), fields, key)
            return rows, RowDifference(unit, old, new, keys)
    return rows, None


def read_new_files(spark: SparkSession, base_path: str, units: Sequence[Unit]) -> DataFrame | None:
    """Return the rows of the units' new files, by Spark's own reader, with the unit's place; None without new files."""
    found: list[DataFrame] = []
    schema: T.StructType | None = None
    for at, unit in enumerate(units):
        if not unit.new_files:
            continue
        reader = spark.read.options(**AS_WRITTEN)
        if schema is not None:
            # One rewrite writes all its files with one schema; its footers need be read once.
            reader = reader.schema(schema)
        rows = reader.parquet(*(f"{base_path}/{path}" for path in unit.new_files))
        schema = rows.schema
        found.append(rows.withColumn(UNIT, F.lit(at)))
    return reduce(lambda left, right: left.unionByName(right), found) if found else None


def compared_fields(state: LoadedTable, schema: T.StructType, after: DataFrame | None) -> list[T.StructField]:
    """Return the columns that are compared: all data, the record key and the partition's path."""
    kept = {RECORD_KEY, PARTITION_PATH}
    config = state.meta_client.getTableConfig()
    partition_fields = config.getPartitionFields()
    left_out = set(stored_as_bytes(schema, after))
    if after is not None and bool(config.shouldDropPartitionColumns()) and partition_fields.isPresent():
        left_out |= set(partition_fields.get()) - set(after.columns)
    return [
        field
        for field in schema.fields
        if (not field.name.startswith("_hoodie_") or field.name in kept) and field.name not in left_out
    ]


def stored_as_bytes(schema: T.StructType, after: DataFrame | None) -> frozenset[str]:
    """Return the columns that are arrays to Hudi's readers and bytes in its files: vectors, which no cast turns."""
    stored = {} if after is None else {field.name: field.dataType for field in after.schema.fields}
    return frozenset(
        field.name
        for field in schema.fields
        if isinstance(field.dataType, T.ArrayType) and isinstance(stored.get(field.name), T.BinaryType)
    )


def _key_of(state: LoadedTable, schema: T.StructType) -> list[str]:
    if RECORD_KEY in schema.names:
        return [RECORD_KEY]
    fields = state.meta_client.getTableConfig().getRecordKeyFields()
    return list(fields.get()) if fields.isPresent() else [schema.names[0]]
