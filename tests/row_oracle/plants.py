"""Brings defects back that cost rows, one at a time, to show that random histories find them.

Compactions and clusterings compare rows before they commit; that is switched off with each defect, so that it is the
readers of the history that find it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from airflow_lake_provider.table_layout import Buckets
from lake_jobs.services import archive, context, orphan_evidence, orphans
from lake_jobs.verify import execution

Put = Callable[[Any, str, Any], None]
"""Sets an attribute of a class or module, as `setattr` does."""


def compare_nothing(put: Put) -> None:
    """Rewritten rows are committed without a comparison."""
    put(execution, "choose_units", lambda units, verify, instant: ())


def instants_stay_at_the_head(put: Put) -> None:
    """Writes are archived behind a completed index build, and a compaction runs all the same."""
    compare_nothing(put)
    put(archive, "slices_by_completion", lambda state: False)
    put(context, "find_behind", lambda state: None)


def buckets_are_not_seen(put: Put) -> None:
    """A table with a bucket index is clustered as one without."""
    compare_nothing(put)
    load = context.load_layout

    def load_without(*args: Any, with_buckets: bool) -> Any:
        return replace(load(*args, with_buckets=with_buckets), buckets=Buckets.NONE)

    put(context, "load_layout", load_without)


def keys_stay_with_the_writers(put: Put) -> None:
    """A client does not get the fields of a table with virtual keys."""
    compare_nothing(put)
    give = context.give_layout

    def give_record_key_only(service: Any, options: Any, layout: Any, key_generator_class: str) -> dict[str, str]:
        return give(service, options, replace(layout, has_meta_fields=True), key_generator_class)

    put(context, "give_layout", give_record_key_only)


def tables_inside_are_searched(put: Put) -> None:
    """The search for orphans takes the files of another table's folder for this one's."""
    put(orphan_evidence, "META_FOLDER", ".no_such_folder")
    put(orphan_evidence, "_is_folder", lambda name, status: bool(status.isDirectory()) and name != ".hoodie")
    put(orphans, "find_other_table", lambda context, partition: "")


def checkpoints_are_archived(put: Put) -> None:
    """Archiving takes the newest commit that holds a stream's position."""
    put(archive, "_find_checkpoint", lambda context, state, known: None)


@dataclass(frozen=True, slots=True)
class Plant:
    """A defect, and the seed from which random histories find it within 20 minutes."""

    put: Callable[[Put], None]
    seed: int


PLANTS: Mapping[str, Plant] = {
    "head": Plant(instants_stay_at_the_head, 400),
    "buckets": Plant(buckets_are_not_seen, 1),
    "keys": Plant(keys_stay_with_the_writers, 6),
    "inside": Plant(tables_inside_are_searched, 2),
    "checkpoint": Plant(checkpoints_are_archived, 401),
}
