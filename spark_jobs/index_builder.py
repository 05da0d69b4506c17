"""Whether somebody builds an index: the traces that builders leave, and what remains of ours when they end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hudi_table import find_heartbeat_age_s
from index_fence import find_newest_marker_ms
from index_place import list_partition
from index_rules import BuilderTraces, heartbeat_expires_s, is_builder_alive
from index_table import METADATA_FOLDER, find_modified_ms, timeline_file
from py4j.protocol import Py4JJavaError

if TYPE_CHECKING:
    from hudi_table import TableLook
    from index_rules import IndexPlan
    from planned_service import Visit


def builder_lives(visit: Visit, look: TableLook, plan: IndexPlan) -> bool:
    """Return whether the builder of an inflight plan lives."""
    return is_builder_alive(look_at_builder(visit, look, plan), heartbeat_expires_s(visit.settings))


def look_at_builder(visit: Visit, look: TableLook, plan: IndexPlan) -> BuilderTraces:
    """Read what the builder of a plan left."""
    spark, metadata = visit.spark, f"{look.base_path}/{METADATA_FOLDER}"
    touched = (
        find_modified_ms(spark, timeline_file(look, f"{plan.instant}.indexing.inflight")),
        _newest_file_ms(visit, plan),
        find_newest_marker_ms(spark, metadata, plan.instant),
    )
    now_ms = int(spark._jvm.java.lang.System.currentTimeMillis())
    newest_ms = max((ms for ms in touched if ms is not None), default=None)
    return BuilderTraces(
        beat_age_s=find_heartbeat_age_s(spark, look.base_path, plan.instant),
        metadata_beat_age_s=find_heartbeat_age_s(spark, metadata, plan.instant),
        touched_age_s=None if newest_ms is None else (now_ms - newest_ms) / 1000,
    )


def _newest_file_ms(visit: Visit, plan: IndexPlan) -> int | None:
    """Return when a build wrote a file last; writers update an announced index in files of their own instants."""
    try:
        _, files = list_partition(visit, plan)
    except Py4JJavaError:
        return None
    own = [status for status in files if f"_{plan.instant}." in str(status.getPath().getName())]
    return max((int(status.getModificationTime()) for status in own), default=None)
