"""What a table is called in a catalog, and by which of Hudi's tools it gets there.

A name is data: it comes from a path or from the tables file, and ends in a catalog that many programs query. So only
what no catalog and no SQL reads in another way is a name; nothing is replaced, or two tables could get one name.
"""

from __future__ import annotations

import re
import zlib
from typing import TYPE_CHECKING

from airflow_lake_provider.shared.hudi_settings import SYNC_TOOL_CLASS

if TYPE_CHECKING:
    from collections.abc import Mapping

NAME = r"[A-Za-z0-9_]{1,128}"
NAME_IN_WORDS = "up to 128 letters, digits and _"
HIVE_SYNC_TOOL = "org.apache.hudi.hive.HiveSyncTool"
_SYNC_SETTINGS = ("hoodie.datasource.hive_sync.", "hoodie.datasource.meta", "hoodie.meta.sync.", "hoodie.meta_sync.")


def name_in_catalog(base_path: str, table: str) -> str:
    """Return a table's name, by default the last part of its path. Hive's names are in small letters."""
    return (table or base_path.rstrip("/").rpartition("/")[2]).lower()


def find_name_problem(name: str) -> str:
    """Say in one sentence why a text is no name of a catalog's table, and what to do; empty when it is one."""
    if re.fullmatch(NAME, name):
        return ""
    return f"{name[:140]!r} is no table name for a catalog ({NAME_IN_WORDS}): set sync.table"


def names_of(name: str, *, is_merge_on_read: bool) -> tuple[str, ...]:
    """Return all names that Hudi's sync gives a table: a merge-on-read table also has read-optimized and real-time."""
    return (name, f"{name}_ro", f"{name}_rt") if is_merge_on_read else (name,)


def tool_of(hudi_options: Mapping[str, str]) -> str:
    """Return the class of Hudi's sync tool that the options name."""
    return hudi_options.get(SYNC_TOOL_CLASS, "").strip() or HIVE_SYNC_TOOL


def describe_catalog(metastore: str, hudi_options: Mapping[str, str]) -> str:
    """Return which catalog it is, for people."""
    tool = tool_of(hudi_options)
    if tool != HIVE_SYNC_TOOL:
        return f"the catalog of {tool}"
    return f"the metastore {metastore}" if metastore else "the metastore of the jobs' hive-site.xml"


def number_of(options: Mapping[str, str], hudi_options: Mapping[str, str]) -> str:
    """Return ten digits that differ when a table is to be registered elsewhere or otherwise."""
    settings = {key: value for key, value in hudi_options.items() if key.startswith(_SYNC_SETTINGS)}
    return f"{zlib.crc32(repr(sorted({**options, **settings}.items())).encode()):010d}"
