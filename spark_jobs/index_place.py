"""Files that keep the file groups of an announced index in being when what its builder began is rolled back.

A writer rolls back a dead builder's delta commit on the metadata table as soon as its heartbeat there has expired, and
deletes every file with that instant in its name (`ListingBasedRollbackStrategy`): were these all, the next commit would
find an announced index without file groups, and fail. So each file group gets an empty log file of an instant that no
timeline knows: it belongs to no write, is never read, and is rolled back by nobody.

The instant is the plan's own plus some milliseconds. A younger one never becomes the beginning of a file slice, as
long as files of the plan's instant are there (`HoodieFileGroup.getBaseInstantTime`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from index_rules import unknown_instant
from index_table import METADATA_FOLDER, metadata_timeline_names
from whole_file import open_path

if TYPE_CHECKING:
    from index_rules import IndexPlan
    from planned_service import Visit

TOKEN = "0-0-7"
"""Write token of these files; Hudi's own first log files have 0-0-0, and those of tasks count up from other stages."""


def keep_place(visit: Visit, plan: IndexPlan) -> None:
    """Put a file beside the first log file of each file group; the caller holds the table's lock."""
    names = {name.split(".")[0].split("_")[0] for name in metadata_timeline_names(visit.spark, visit.job.base_path)}
    names |= {str(instant.requestedTime()) for instant in visit.look().timeline.getInstants()}
    unknown = unknown_instant(plan.instant, names)
    fs, files = list_partition(visit, plan)
    for status in files:
        file_id, found, rest = str(status.getPath().getName()).partition(f"_{plan.instant}.log.")
        if found and not rest.endswith(".crc"):
            name = f"{file_id}_{unknown}.log.1_{TOKEN}"
            fs.create(visit.spark._jvm.org.apache.hadoop.fs.Path(status.getPath().getParent(), name)).close()


def give_place_up(visit: Visit, plan: IndexPlan) -> None:
    """Remove these files, once the delta commit of the build is completed and cannot be rolled back any more."""
    fs, files = list_partition(visit, plan)
    for status in files:
        path = status.getPath()
        if str(path.getName()).endswith(f".log.1_{TOKEN}"):
            fs.delete(path)


def list_partition(visit: Visit, plan: IndexPlan) -> tuple[Any, list[Any]]:
    """Return Hadoop's file system, and its statuses of the files of a plan's index. Raises Py4JJavaError."""
    fs, folder = open_path(visit.spark, f"{visit.job.base_path}/{METADATA_FOLDER}/{plan.partition}")
    return fs, list(fs.listStatus(folder))
