"""What only a table's writers know of its layout, read from the table itself: its buckets, and whether rows have keys.

Hudi keeps the index in the settings of each writer. A client without them takes a table with a bucket index for one
without, and gives new file groups names in which writers find no bucket. Pure; standard library only, for the planner
and for the jobs.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING

from airflow_lake_provider.job_contract import Mode, Service

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

HASHING_METADATA = ".hoodie/.bucket_index/consistent_hashing_metadata"
"""Folder below the base path in which writers with consistent hashing keep which file group has which bucket."""

INDEX_TYPE = "hoodie.index.type"
BUCKET_ENGINE = "hoodie.index.bucket.engine"
META_FIELDS = "hoodie.populate.meta.fields"
CLUSTER_OPERATION = "CLUSTER"
"""What the commit metadata of a clustering says that it is; its file ids may be of a client that knew no buckets."""

_BUCKET_NUMBER = re.compile(r"00\d{6}")
"""Beginning of a file id with a bucket's number. Of random file ids one in 4,000 begins like this."""


class Buckets(StrEnum):
    """How a table's writers distribute keys over file groups."""

    NONE = "none"
    SIMPLE = "simple"
    """A fixed number of buckets, whose number begins each file id; also with a number for each partition."""
    CONSISTENT = "consistent hashing"


def find_buckets(
    newest_file_ids: Collection[str], *, has_hashing_metadata: bool, hudi_options: Mapping[str, str]
) -> Buckets:
    """Return which buckets a table has.

    `newest_file_ids` are those that its newest write, clusterings aside, wrote to. A table without files has the
    buckets that its owner names.
    """
    is_named = hudi_options.get(INDEX_TYPE, "").strip().upper() == "BUCKET"
    if has_hashing_metadata or (is_named and _names_consistent_hashing(hudi_options)):
        return Buckets.CONSISTENT
    are_numbered = bool(newest_file_ids) and all(map(_BUCKET_NUMBER.match, newest_file_ids))
    return Buckets.SIMPLE if are_numbered or is_named else Buckets.NONE


def _names_consistent_hashing(hudi_options: Mapping[str, str]) -> bool:
    return hudi_options.get(BUCKET_ENGINE, "").strip().upper() == "CONSISTENT_HASHING"


def asks_buckets(service: Service, mode: Mode) -> bool:
    """Return whether a service could do harm to a table with buckets."""
    return service in {Service.CLUSTERING, Service.TTL} and mode is not Mode.WITHDRAW


def find_layout_problem(service: Service, mode: Mode, buckets: Buckets, properties: Mapping[str, str]) -> str:
    """Return why a service must not run on a table with this layout, and what to do; empty when it may.

    `properties` are those of `hoodie.properties`.
    """
    if not asks_buckets(service, mode):
        return ""
    if service is Service.TTL:
        return _EXPIRED_BUCKETS if buckets is Buckets.CONSISTENT else ""
    if buckets is not Buckets.NONE:
        return f"{_CLUSTERED_BUCKETS[buckets]}; {_WAY_OUT}"
    if properties.get(META_FIELDS, "true").strip().lower() == "false":
        return f"{_CLUSTERED_VIRTUAL_KEYS}; {_WAY_OUT}"
    return ""


_WAY_OUT = (
    "leave clustering to the table's writers, set clustering.enabled: false, and withdraw a plan that is pending (a "
    "run of the service clustering with mode withdraw)"
)
_CLUSTERED_BUCKETS = {
    Buckets.SIMPLE: (
        "the table has a simple bucket index, and Hudi has no clustering for it: the new files would carry no bucket "
        "number, and every later upsert would fail"
    ),
    Buckets.CONSISTENT: (
        "the table has a bucket index with consistent hashing: its writers would go on to write into the file groups "
        "that a clustering replaces, and no reader would see those rows"
    ),
}
_CLUSTERED_VIRTUAL_KEYS = (
    f"the table has virtual keys ({META_FIELDS}=false): Hudi would write the clustered files into the table's root "
    "folder, and no reader could open the table"
)
_EXPIRED_BUCKETS = (
    "the table has a bucket index with consistent hashing: rows that come back to a deleted partition would be written "
    "into file groups that the deletion replaced, and no reader would see them; leave ttl.retained_days unset"
)
