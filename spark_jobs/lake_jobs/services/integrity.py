"""Compares samples of a table with what it should be: the metadata table's list with the store's, and keys for doubles.

It takes no lock and changes nothing: what it finds it leaves below `.hoodie/.aux` of the table, for the doctor. Writers
and services go on meanwhile, and what they do between two of its readings is no damage (`integrity_rules`).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError

from airflow_lake_provider.errors import ServiceRefusedError
from airflow_lake_provider.job_contract import (
    ContractError,
    Damage,
    DamageKind,
    FailureKind,
    JobRequest,
    KeyScope,
    KnownDamage,
    Mode,
    Outcome,
    Service,
    ServiceRequest,
    ServiceResult,
    from_json,
    to_json,
)
from airflow_lake_provider.obstacles import explain_pending_restore
from lake_jobs.driver.files import log_progress
from lake_jobs.hudi.files import TableFiles
from lake_jobs.hudi.table import find_restores, read_table_state
from lake_jobs.services.context import refuse_scheduling, require_version, seconds_since
from lake_jobs.services.integrity_keys import KeySearch
from lake_jobs.services.integrity_listing import Listings, compare_listings, is_file_missing
from lake_jobs.services.integrity_rules import (
    draw_groups,
    draw_partitions,
    find_key_damage,
    read_integrity_rules,
    remember,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from pyspark.sql import SparkSession

    from lake_jobs.services.integrity_rules import IntegrityRules

OF_LISTING = (DamageKind.GONE_FILES, DamageKind.UNLISTED_FILES)


def run_integrity(spark: SparkSession, job: JobRequest, request: ServiceRequest) -> ServiceResult:
    """Run one check. The result is `completed` when it has found damage, and `nothing_to_do` when it has not.

    Raises ServiceRefusedError when the request only schedules, for settings that are none, and during a restore;
    NoTableError; or Py4JJavaError when the table cannot be read.
    """
    table = f"table {job.table_name} at {job.base_path}"
    if request.mode is Mode.SCHEDULE:
        raise refuse_scheduling(job, "a check compares in one step")
    rules = read_integrity_rules(request.options, table)
    state = read_table_state(spark, job.base_path)
    require_version(spark, job, state)
    problem = explain_pending_restore(find_restores(state))
    if problem:
        raise ServiceRefusedError(f"{table}: {problem}")
    if not state.timeline.getCommitsTimeline().filterCompletedInstants().countInstants():
        message = "the table has no completed write"
        return ServiceResult(Service.INTEGRITY, Outcome.NOTHING_TO_DO, message=message)
    try:
        return _check(spark, job, rules)
    except Py4JJavaError as error:
        if not is_file_missing(error):
            raise
        message = f"{table}: a clean removed files while they were read; the next try reads the table as it is then"
        return ServiceResult(Service.INTEGRITY, Outcome.FAILED, failure_kind=FailureKind.CONFLICT, message=message)


def _check(spark: SparkSession, job: JobRequest, rules: IntegrityRules) -> ServiceResult:
    files = TableFiles(spark, job.base_path)
    before = {kind: load_damage(files, kind) for kind in DamageKind}
    search = KeySearch(spark, read_table_state(spark, job.base_path), rules.keys)
    listings = Listings(spark, search.state)
    known = listings.partitions()
    damaged = {partition for found in before.values() for damage in found for partition in damage.partitions}
    # The job is another one in each run, so it draws others.
    partitions = draw_partitions(known, damaged, job.job_id, rules.max_partitions)
    done = [f"compared {len(partitions)} of {len(known)} partitions"]
    compared: dict[DamageKind, Collection[str]] = {}
    found: list[Damage] = []
    if listings.has_metadata_table:
        started = time.monotonic()
        found += compare_listings(spark, job.base_path, partitions)
        compared |= dict.fromkeys(OF_LISTING, partitions)
        done.append(f"their files with the metadata table's list ({seconds_since(started)})")
    if rules.keys is not KeyScope.OFF and not search.has_keys:
        done.append("no keys, because the files have no meta fields")
    elif rules.keys is not KeyScope.OFF:
        started = time.monotonic()
        # A file that was cut short cannot be read.
        broken = {each for damage in found if damage.kind is DamageKind.GONE_FILES for each in damage.partitions}
        readable = [each for each in partitions if each not in broken]
        damage, compared[DamageKind.DUPLICATE_KEYS], what = _compare_keys(search, readable, job.job_id, rules)
        found += damage
        done.append(f"{what} ({seconds_since(started)})")
    for kind in DamageKind:
        _keep(
            files, kind, before[kind], remember(before[kind], [each for each in found if each.kind is kind], compared)
        )
    message = f"{'; '.join(done)}: {'; '.join(each.what for each in found) or 'no damage'}"
    log_progress(job.table_name, message)
    outcome = Outcome.COMPLETED if found else Outcome.NOTHING_TO_DO
    return ServiceResult(Service.INTEGRITY, outcome, message=message)


def _compare_keys(
    search: KeySearch, partitions: Sequence[str], seed: str, rules: IntegrityRules
) -> tuple[tuple[Damage, ...], list[str], str]:
    """Return the damage of keys, the partitions that were compared whole, and what was compared, in words."""
    slices = search.slices(partitions)
    sizes = {
        partition: {file_id: found.length for file_id, found in groups.items()} for partition, groups in slices.items()
    }
    drawn = draw_groups(sizes, seed, rules.max_bytes)
    taken = {partition: {file_id: slices[partition][file_id] for file_id in ids} for partition, ids in drawn.items()}
    found, number = search.find(taken)
    damage = find_key_damage(search.confirm(found), number) if found else ()
    groups = sum(len(ids) for ids in drawn.values())
    read_bytes = sum(each.length for groups in taken.values() for each in groups.values())
    whole = [partition for partition, ids in drawn.items() if len(ids) == len(sizes[partition])]
    of = sum(map(len, sizes.values()))
    return damage, whole, f"the keys of {groups} of their {of} file groups ({read_bytes / (1 << 20):,.1f} MiB)"


def load_damage(files: TableFiles, kind: DamageKind) -> tuple[Damage, ...]:
    """Return what is known of one kind of damage; nothing where the file says nothing that is understood."""
    if files.size_of(kind.place) is None:
        return ()
    try:
        return from_json(KnownDamage, files.read(kind.place).decode()).found
    except (ContractError, UnicodeDecodeError):
        return ()


def _keep(files: TableFiles, kind: DamageKind, before: tuple[Damage, ...], now: tuple[Damage, ...]) -> None:
    if now and now != before:
        files.create(kind.place, to_json(KnownDamage(now)).encode())
    elif not now:
        files.delete(kind.place)
