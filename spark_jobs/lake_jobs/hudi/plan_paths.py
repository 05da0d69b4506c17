"""Refuses a plan that names files outside of its table, as the plans of a table do that was moved or copied."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError

from lake_jobs.hudi.files import open_path
from lake_jobs.hudi.plan_path_rules import find_outside, leads_up

if TYPE_CHECKING:
    from collections.abc import Collection

    from pyspark.sql import SparkSession

    from lake_jobs.hudi.table import LoadedTable


class PlanOutsideError(Exception):
    """A plan names files that are not its table's; nothing was read or deleted there."""

    def __init__(self, plan: str, path: str) -> None:
        super().__init__(
            f"plan {plan} names {path}, which is not in this table, as plans of a table do that was moved or copied; "
            "nothing was read or deleted there"
        )
        self.plan = plan


def require_inside(spark: SparkSession, state: LoadedTable, plan: str, paths: Collection[str]) -> None:
    """Raise PlanOutsideError when a path lies neither in the table nor in the folder that it was bootstrapped from.

    A path may name the table in another way (a link, another name of the store). Raises Py4JJavaError.
    """
    folders = [state.base_path, *_source_folders(spark, state)]
    while outside := find_outside(paths, folders):
        own = "" if leads_up(outside) else _find_table_above(spark, state, outside)
        if not own:
            raise PlanOutsideError(plan, outside)
        folders.append(own)


def _source_folders(spark: SparkSession, state: LoadedTable) -> list[str]:
    """Return the folder that a table was bootstrapped from, as its property has it, and as Hudi's plans do."""
    source = state.meta_client.getTableConfig().getBootstrapBasePath()
    if not source.isPresent():
        return []
    fs, path = open_path(spark, str(source.get()))
    return [str(source.get()), str(fs.makeQualified(path).toString())]


def _find_table_above(spark: SparkSession, state: LoadedTable, path: str) -> str:
    """Return the folder above a path that is this very table, by a file that is created in the table; empty for none.

    Two copies of a table have the same content, so nothing that was there before shows which one it is.
    """
    name = f".hoodie/.aux/lake_place_{uuid.uuid4().hex}"
    fs, mark = open_path(spark, f"{state.base_path}/{name}")
    recursive = False
    fs.create(mark).close()
    try:
        other, found = open_path(spark, path)
        while (found := found.getParent()) is not None:
            if other.exists(spark._jvm.org.apache.hadoop.fs.Path(found, name)):
                return str(found.toString())
    except Py4JJavaError:
        return ""  # a store that cannot be reached: Hudi could not execute the plan either
    finally:
        fs.delete(mark, recursive)
    return ""
