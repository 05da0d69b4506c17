"""What a reader merges of each file group of some partitions, by the store's own listing and the timeline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lake_jobs.replication.file_slices import FIRST_VERSION_OF_OWN_LOGS, parse_name
from lake_jobs.replication.slice_reader import LAST_INSTANT
from lake_jobs.services.integrity_listing import Listings
from lake_jobs.verify.seen_before import find_completed, with_archived
from lake_jobs.verify.slices import find_doubtful, find_seen_slice

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import SparkSession

    from lake_jobs.hudi.table import LoadedTable
    from lake_jobs.replication.file_slices import DataFile, FileSlice


def find_latest_slices(
    spark: SparkSession, state: LoadedTable, partitions: Iterable[str]
) -> dict[str, dict[str, FileSlice]]:
    """Return the slices by partition and file id."""
    listings = Listings(spark, state)
    # The latest groups first: what replaces one of them afterwards leaves its files where they are.
    groups = listings.latest_groups(partitions)
    found: dict[str, dict[str, FileSlice]] = {}
    for partition, ids in groups.items():
        files: dict[str, list[DataFile]] = {file_id: [] for file_id in ids}
        for entry in listings.stored(partition):
            file = parse_name(entry.path.rpartition("/")[2], entry, entry.length)
            if file is not None and file.file_id in files:
                files[file.file_id].append(file)
        found[partition] = _slices_of(state, files)
    return found


def _slices_of(state: LoadedTable, files: Mapping[str, list[DataFile]]) -> dict[str, FileSlice]:
    known = find_completed(state)
    version = state.table_version
    doubtful = [found for each in files.values() if (found := find_doubtful(each, known))]
    if doubtful and version >= FIRST_VERSION_OF_OWN_LOGS:
        known = with_archived(state, known, min(doubtful))
    slices = {at: find_seen_slice(each, known, LAST_INSTANT, version) for at, each in files.items()}
    return {file_id: found for file_id, found in slices.items() if found is not None}
