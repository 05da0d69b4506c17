"""Brings defects back that were removed, one at a time, to show that the oracle finds them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from airflow_lake_provider.hudi.instant import ArchivedTimeline
from airflow_lake_provider.timeline_server import archive_tail, cache, snapshot, watch
from lake_jobs.indexing import bounds, build, check, finish, job, listing, rules, schedule, state

Put = Callable[[Any, str, Any], None]
"""Sets an attribute of a class or module, as `setattr` does."""


def archive_is_read_only_behind_the_first_instant(put: Put) -> None:
    """A cursor behind the first active instant of any action never reads the archive."""
    read = archive_tail.ArchiveTail.read

    def read_rarely(self: Any, query: Any, load: Any) -> ArchivedTimeline:
        instants = query.snapshot.timeline.instants
        if instants and query.after >= instants[0].requested_time:
            return ArchivedTimeline()
        return read(self, query, load)

    put(archive_tail.ArchiveTail, "read", read_rarely)


def properties_are_read_when_names_vanish(put: Put) -> None:
    """A listing never reads the properties again because an index build completed, or a job of ours ended."""
    hint = cache.SharedTimelines.hint

    def hint_as_writer(self: Any, path: str, instants: Any = (), mark: int = 0, *, is_by_writer: bool = False) -> None:
        hint(self, path, instants, mark, is_by_writer=True)

    put(snapshot, "_has_new_properties", lambda known, listing: False)
    put(cache.SharedTimelines, "hint", hint_as_writer)
    put(cache.SharedTimelines, "confirm_properties", lambda self, snapshot: snapshot)


def a_plan_is_its_first_index(put: Put) -> None:
    """A plan of several indexes is completed when its first one is built."""
    read = state.load_index_state

    def load_first(context: Any) -> Any:
        found = read(context)
        return replace(found, plans=tuple(replace(plan, others=()) for plan in found.plans))

    for module in (build, finish, job, listing, schedule, state):
        if hasattr(module, "load_index_state"):
            put(module, "load_index_state", load_first)


def services_must_be_in_every_index(put: Put) -> None:
    """The cheap check asks indexes for log compactions and clusterings, which Hudi leaves out."""
    must = rules.must_mention

    def must_mention(partition: str, change: Any) -> bool:
        is_left_out = change.operation in {rules.LOG_COMPACT, rules.CLUSTER}
        return must(partition, replace(change, operation="UPSERT") if is_left_out else change)

    put(check, "must_mention", must_mention)


def notices_stand_for_what_is_never_announced(put: Put) -> None:
    """A table that announces its commits is not refreshed for a watcher of index plans."""
    put(watch.Watch, "needs_unannounced", False)


def zeros_of_a_footer_are_taken_for_others(put: Put) -> None:
    """The full check compares the bounds of column statistics with those of the rows as texts."""
    put(bounds, "_plain", lambda bound: bound)


PLANTS: Mapping[str, Callable[[Put], None]] = {
    "archive": archive_is_read_only_behind_the_first_instant,
    "properties": properties_are_read_when_names_vanish,
    "plans": a_plan_is_its_first_index,
    "services": services_must_be_in_every_index,
    "zeros": zeros_of_a_footer_are_taken_for_others,
    "announced": notices_stand_for_what_is_never_announced,
}
