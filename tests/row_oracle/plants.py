"""Brings defects back that cost rows or writers, one at a time, to show that random histories find them.

Compactions and clusterings compare rows before they commit; that is switched off with each defect, so that it is the
readers of the history that find it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from airflow_lake_provider.job_contract import Service
from airflow_lake_provider.planner import compaction, small_files
from airflow_lake_provider.shared.hudi_settings import CONCURRENCY_MODE
from airflow_lake_provider.table_layout import Buckets, find_layout_problem, give_layout
from lake_jobs.hudi import table
from lake_jobs.hudi.layout import load_layout
from lake_jobs.hudi.settings import service_settings
from lake_jobs.services import archive, context, orphan_evidence, orphans, rollback, ttl
from lake_jobs.verify import execution, rewrite

Put = Callable[[Any, str, Any], None]
"""Sets an attribute of a class or module, as `setattr` does."""


def compare_nothing(put: Put) -> None:
    """Rewritten rows are committed without a comparison."""
    put(execution, "compare", lambda *_: execution.Comparison(0, 0, 0, 0))


def instants_stay_at_the_head(put: Put) -> None:
    """Writes are archived behind a completed index build, and a compaction runs all the same."""
    compare_nothing(put)
    put(archive, "slices_by_completion", lambda state: False)
    put(context, "find_behind", lambda state: None)


def _hide_buckets(put: Put, hidden: Buckets) -> None:
    compare_nothing(put)

    def load_without(*args: Any, with_buckets: bool) -> Any:
        layout = load_layout(*args, with_buckets=with_buckets)
        return replace(layout, buckets=Buckets.NONE) if layout.buckets is hidden else layout

    put(context, "load_layout", load_without)


def simple_buckets_are_not_seen(put: Put) -> None:
    """A table with a simple bucket index is clustered as one without: its writer finds no bucket in the new names."""
    _hide_buckets(put, Buckets.SIMPLE)


def hashing_is_not_seen(put: Put) -> None:
    """A table with consistent hashing is clustered as one without: its writer goes on in the replaced file groups."""
    _hide_buckets(put, Buckets.CONSISTENT)


def expired_buckets_are_deleted(put: Put) -> None:
    """Partitions of a table with consistent hashing expire: rows that come back are not seen."""

    def find_for_others(service: Service, *args: Any) -> str:
        return "" if service is Service.TTL else find_layout_problem(service, *args)

    put(context, "find_layout_problem", find_for_others)


def named_settings_are_taken_alone(put: Put) -> None:
    """A client gets the index and the concurrency mode that the owner names, and not what Hudi asks for with them."""

    def settle_as_named(service: Any, options: Any, *args: Any) -> dict[str, str]:
        settings = service_settings(service, options, *args)
        return {**settings, CONCURRENCY_MODE: options.get(CONCURRENCY_MODE, settings[CONCURRENCY_MODE])}

    put(context, "give_layout", lambda service, options, layout, key_generator: dict(options))
    put(context, "service_settings", settle_as_named)


def keys_stay_with_the_writers(put: Put) -> None:
    """A client does not get the fields of a table with virtual keys."""
    compare_nothing(put)

    def give_record_key_only(service: Any, options: Any, layout: Any, key_generator_class: str) -> dict[str, str]:
        return give_layout(service, options, replace(layout, has_meta_fields=True), key_generator_class)

    put(context, "give_layout", give_record_key_only)


def tables_inside_are_searched(put: Put) -> None:
    """The search for orphans takes the files of another table's folder for this one's."""
    put(orphan_evidence, "META_FOLDER", ".no_such_folder")
    put(orphan_evidence, "_is_folder", lambda name, status: bool(status.isDirectory()) and name != ".hoodie")
    put(orphans, "find_other_table", lambda context, partition: "")


def checkpoints_are_archived(put: Put) -> None:
    """Archiving takes the newest commit that holds a stream's position."""
    put(archive, "_find_checkpoint", lambda context, state, known: None)


def settings_outlive_the_table(put: Put) -> None:
    """What was written for a table without a metadata table is committed to one that has got it meanwhile."""
    compare_nothing(put)

    @contextlib.contextmanager
    def commit_by_first_settings(service_context: Any, client: Any) -> Iterator[Any]:
        yield client

    put(context.ServiceContext, "require_unchanged", lambda self, state: None)
    put(rewrite, "find_committer", commit_by_first_settings)


def rollbacks_hold_no_lock(put: Put) -> None:
    """A write may complete between the last reading of its heartbeat and its rollback."""

    @contextlib.contextmanager
    def act_without_lock(service_context: Any, client: Any) -> Iterator[Any]:
        yield service_context, client

    put(rollback, "act_under_lock", act_without_lock)


def heartbeats_age_by_the_drivers_clock(put: Put) -> None:
    """The age of a heartbeat is the time by this machine's clock, which may be ahead, minus that of the store."""
    put(table, "store_now_ms", lambda spark, base_path: int(time.time() * 1000))


def expired_partitions_have_no_writers(put: Put) -> None:
    """A partition is deleted while a writer is at work in it, which fails at its commit."""
    put(ttl, "wait_for_writers", lambda service_context, expired: None)
    put(ttl, "require_no_writer", lambda *args, **more: None)


def files_are_written_by_hudis_defaults(put: Put) -> None:
    """Rewritten files have the codec and bloom filter of Hudi's defaults."""
    put(context, "read_as_writers", lambda spark, state, options: dict(options))


def failed_plans_stay(put: Put) -> None:
    """A clustering plan that failed in its last try stays, and blocks the updates of its files."""
    put(compaction, "_left_by_failed_run", lambda *args: ())


def clusterings_take_all_partitions(put: Put) -> None:
    """A clustering does not get the partitions for which it is due."""
    put(small_files, "clustering_options", lambda policy, partitions=(): {})


@dataclass(frozen=True, slots=True)
class Plant:
    """A defect, and the seed from which random histories find it within 20 minutes."""

    put: Callable[[Put], None]
    seed: int


PLANTS: Mapping[str, Plant] = {
    "head": Plant(instants_stay_at_the_head, 11),
    "simple_buckets": Plant(simple_buckets_are_not_seen, 413),
    "hashing": Plant(hashing_is_not_seen, 741),
    "expired_hashing": Plant(expired_buckets_are_deleted, 241),
    "named": Plant(named_settings_are_taken_alone, 447),
    "keys": Plant(keys_stay_with_the_writers, 222),
    "settings": Plant(settings_outlive_the_table, 3215),
    "inside": Plant(tables_inside_are_searched, 26),
    "rollback": Plant(rollbacks_hold_no_lock, 80),
    "clock": Plant(heartbeats_age_by_the_drivers_clock, 269),
    "format": Plant(files_are_written_by_hudis_defaults, 845),
    "expired_writer": Plant(expired_partitions_have_no_writers, 723),
    "failed_plan": Plant(failed_plans_stay, 365),
    "checkpoint": Plant(checkpoints_are_archived, 4059),
    "scope": Plant(clusterings_take_all_partitions, 1937),
}
