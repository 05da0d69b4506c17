"""Decide when a table is registered in a catalog again. Pure.

A catalog has to learn of new columns, of new partitions and of those that are gone, and of nothing else: readers find
the files of a partition through Hudi. All of that is in the commits' metadata, so nothing is listed, and a table whose
commits change none of it gets no run. What the last run left in the catalog is remembered with the table's last runs;
where it is lost, one run finds nothing to do.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.job_contract import SYNC_DATABASE, SYNC_METASTORE, SYNC_TABLE, Mode, Service
from airflow_lake_provider.planner.rules import Decision, KeptBy, Verdict, not_due
from airflow_lake_provider.shared.actions import Action
from airflow_lake_provider.shared.catalog_names import (
    describe_catalog,
    find_name_problem,
    name_in_catalog,
    names_of,
    number_of,
)
from airflow_lake_provider.shared.hudi_settings import MERGE_ON_READ

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from airflow_lake_provider.config.policies import TablePolicy
    from airflow_lake_provider.config.service_policies import SyncPolicy
    from airflow_lake_provider.hudi.commit_metadata import CommitMetadata
    from airflow_lake_provider.planner.facts import TableFacts
    from airflow_lake_provider.planner.rules import Evidence

MAX_PARTITIONS = 2000
"""So many partitions are remembered, those written last: one that is written after so many others counts as new."""
_MAX_NAMED = 3
_NUMBER_DIGITS = 10


@dataclass(frozen=True, slots=True)
class Synced:
    """What a catalog knows of a table, as far as it is remembered."""

    until: str = ""
    """Writes that completed until this moment changed nothing that the catalog does not know; empty: it knows none."""
    target: str = ""
    """Where the table was registered (`number_of`)."""
    noted_until: str = ""
    """Writes that completed until this moment are in what follows."""
    columns: str = ""
    """`CommitMetadata.columns` of the newest write that names any."""
    partitions: tuple[str, ...] = ()
    """Digests of the partitions, those written last at the end."""

    def done(self, key_instant: str, newest_write: str) -> Synced:
        """Return it after a run for this key, decided when that write was the newest one, has succeeded."""
        return replace(self, until=max(self.until, newest_write), target=key_instant[-_NUMBER_DIGITS:])

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON's values."""
        return {
            "until": self.until,
            "target": self.target,
            "noted_until": self.noted_until,
            "columns": self.columns,
            "partitions": list(self.partitions),
        }


NOT_SYNCED = Synced()


def parse_synced(record: Any) -> Synced:
    """Return what `Synced.to_dict` gave. Raises TypeError for another form."""
    if not record:
        return NOT_SYNCED
    return Synced(**{**record, "partitions": tuple(map(str, record["partitions"]))})


def decide_sync(facts: TableFacts, policy: TablePolicy, synced: Synced) -> Decision:
    """Decide whether the table is registered in its catalog now, with the reason."""
    service = Service.SYNC
    rules = policy.sync
    if not rules.enabled:
        return not_due(service, "the table is registered in no catalog (sync.enabled: false)")
    options = sync_options(rules)
    name = name_in_catalog(facts.view.base_path, rules.table or "")
    names = names_of(name, is_merge_on_read=facts.properties.table_type == MERGE_ON_READ)
    where = describe_catalog(rules.metastore or "", policy.hudi_options)
    newest = facts.writes[-1] if facts.writes else None
    target = number_of(options, policy.hudi_options)
    evidence: Evidence = {
        "catalog": where,
        "registered_as": ", ".join(f"{rules.database.lower()}.{name}" for name in names),
        "registration": target,
        "synced_until": synced.until or None,
        "newest_write": newest.requested_time if newest is not None else None,
    }
    if newest is None:
        return not_due(service, "the table has no completed write", evidence)
    changes = ", ".join(_find_reasons(facts, replace(synced, until="") if synced.target != target else synced))
    if not changes:
        reason = f"{where} has the columns and partitions of {newest.requested_time}"
        return not_due(service, reason, evidence)
    reason = f"{where} lacks {changes}"
    problem = find_name_problem(name)
    if problem:
        blocked = f"{reason}, but {problem}"
        return Decision(service, Verdict.BLOCKED, blocked, evidence=evidence, kept_by=KeptBy.TABLE)
    # A restore makes an older write the newest one again.
    restore = facts.timeline.latest_completed(Action.RESTORE)
    newest_time = max(newest.requested_time, restore.requested_time if restore is not None else "")
    return Decision(service, Verdict.DUE, reason, Mode.EXECUTE, f"{newest_time}{target}", (), evidence, options)


def sync_options(rules: SyncPolicy) -> Mapping[str, str]:
    """Return the policy as options of the job."""
    options = {SYNC_METASTORE: rules.metastore, SYNC_DATABASE: rules.database, SYNC_TABLE: rules.table}
    return {name: value for name, value in options.items() if value}


def remember_synced(facts: TableFacts, synced: Synced) -> Synced:
    """Return what is remembered after an evaluation of the active timeline.

    The moment until which the catalog knows all moves on with writes that change nothing that it would have to learn:
    the timeline no longer shows what was archived since.
    """
    if not synced.until:
        return synced
    noted = _note(facts, synced, synced.until)
    if facts.writes and not list(_find_reasons(facts, noted)):
        newest = facts.writes[-1].ordering_time
        noted = replace(_note(facts, noted, newest), until=max(noted.until, newest))
    return noted


def _note(facts: TableFacts, synced: Synced, until: str) -> Synced:
    known = dict.fromkeys(synced.partitions)
    columns = synced.columns
    for write in facts.writes_after(synced.noted_until):
        commit = facts.view.commits.get(write.requested_time)
        if write.ordering_time > until or commit is None:
            continue
        for partition in _dropped(commit):
            known.pop(_digest(partition), None)
        for partition in _written(commit):
            known.pop(_digest(partition), None)
            known[_digest(partition)] = None
        columns = commit.columns or columns
    return replace(synced, noted_until=until, columns=columns, partitions=tuple(known)[-MAX_PARTITIONS:])


def _find_reasons(facts: TableFacts, synced: Synced) -> Iterable[str]:
    """Return what changed that the catalog does not know, each in words."""
    if not synced.until:
        yield "this table"
        return
    if not facts.reaches_back_to(synced.until):
        yield f"what was archived after {synced.until}"
        return
    if facts.is_restored_after(synced.until):
        yield "what a restore took back"
        return
    synced = _note(facts, synced, synced.until)
    known = set(synced.partitions)
    added: dict[str, None] = {}
    dropped: dict[str, None] = {}
    columns = synced.columns
    for write in facts.writes_after(synced.until):
        commit = facts.view.commits.get(write.requested_time)
        if commit is None:
            yield f"write {write.requested_time}, whose metadata is not readable"
            return
        columns = commit.columns or columns
        if not facts.properties.partition_fields:
            continue
        dropped.update(dict.fromkeys(_dropped(commit)))
        added.update(dict.fromkeys(partition for partition in _written(commit) if _digest(partition) not in known))
    if columns != synced.columns:
        yield "changed columns"
    if added:
        yield _name("new partitions", added)
    if dropped:
        yield _name("that these partitions are gone:", dropped)


def _written(commit: CommitMetadata) -> dict[str, None]:
    return dict.fromkeys(stat.partition for stat in commit.stats)


def _dropped(commit: CommitMetadata) -> dict[str, None]:
    """Return the partitions whose files a write replaced, and to which it wrote none."""
    written = _written(commit)
    return dict.fromkeys(partition for partition, _ in commit.replaced_file_groups if partition not in written)


def _digest(partition: str) -> str:
    return hashlib.sha256(partition.encode()).hexdigest()[:12]


def _name(what: str, partitions: Mapping[str, None]) -> str:
    named = ", ".join(list(partitions)[:_MAX_NAMED])
    more = len(partitions) - _MAX_NAMED
    return f"{what} {named}{f' and {more} more' if more > 0 else ''}"
