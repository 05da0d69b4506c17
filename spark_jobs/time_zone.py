"""The zone in which this driver names instants: the table's, and refused where the writers take another one."""

from __future__ import annotations

import time
from functools import cache
from typing import TYPE_CHECKING

from instant_clock import ZONE_STEP_MS, describe_foreign, find_foreign, stamps_of
from whole_file import open_path

if TYPE_CHECKING:
    from hudi_table import TableLook
    from pyspark.sql import SparkSession

UTC = "UTC"


def take_zone_of_table(spark: SparkSession, look: TableLook) -> None:
    """Let this JVM name instants in the zone that the table says, as writers do.

    Hudi keeps one zone per JVM, and sets it where a Spark writer begins or a table is created: a client made for a
    service leaves it at the JVM's own, also on a table that says UTC.
    """
    zone = look.meta_client.getTableConfig().getTimelineTimezone()
    spark._jvm.org.apache.hudi.common.table.timeline.HoodieInstantTimeGenerator.setCommitTimeZone(zone)


def find_zone_problem(spark: SparkSession, look: TableLook) -> str:
    """Say which instants were not named in this JVM's zone, and what to do; empty when all were. One listing."""
    table_zone = str(look.meta_client.getTableConfig().getTimelineTimezone().name())
    jvm_zone = spark._jvm.java.util.TimeZone.getDefault()

    @cache
    def offset_of_step(step: int) -> int:
        return 0 if table_zone == UTC else int(jvm_zone.getOffset(step * ZONE_STEP_MS))

    fs, folder = open_path(spark, look.meta_client.getTimelinePath().toString())
    files = ((str(status.getPath().getName()), int(status.getModificationTime())) for status in fs.listStatus(folder))
    # Zones change at full quarters of an hour, so one question for each is enough.
    foreign = find_foreign(stamps_of(files), lambda ms: offset_of_step(ms // ZONE_STEP_MS), int(time.time() * 1000))
    if foreign is None:
        return ""
    return describe_foreign(foreign, UTC if table_zone == UTC else str(jvm_zone.getID()), table_zone)
