"""The check before tables get another version as a task makes it, and when each table's turn is."""

from __future__ import annotations

import fnmatch
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.doctor.evidence import collect_evidence
from airflow_lake_provider.doctor.report_lines import refuse
from airflow_lake_provider.doctor.upgrade_check import READABLE_FROM, UpgradePlan, UpgradeState, check_upgrade
from airflow_lake_provider.errors import ConfigError, HalfMovedError, LakeError
from airflow_lake_provider.execution.arguments import require_allowed_table
from airflow_lake_provider.execution.restore import find_holds
from airflow_lake_provider.hooks.open_tables import policy_of, table_opener
from airflow_lake_provider.hudi.active_writes import heartbeat_rule
from airflow_lake_provider.hudi.base_path import normalise_base_path, table_id_of
from airflow_lake_provider.hudi.properties import load_table_properties
from airflow_lake_provider.hudi.upgrade_mark import load_upgrade_mark
from airflow_lake_provider.job_contract import UPGRADE_MARK

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_lake_provider.hooks.lake import LakeHook

READS_AT_ONCE = 8
_PATTERN = "*?["


def check_fleet(
    hook: LakeHook, patterns: Sequence[str], versions: Sequence[int], target: int
) -> tuple[UpgradePlan, ...]:
    """Return a plan for each table that a pattern names and whose version is asked for; none changes anything.

    Without `versions` tables of each version are asked for. Raises LakeError, also where no table is found.
    """
    if target not in READABLE_FROM:
        raise ConfigError(f"version {target}: Hudi 1.2 changes tables to {', '.join(map(str, READABLE_FROM))}")
    tables = _choose(hook, patterns)
    with ThreadPoolExecutor(READS_AT_ONCE) as pool:
        plans = tuple(pool.map(partial(_check_table, hook, target), tables))
    found = tuple(plan for plan in plans if not versions or plan.version in {*versions, 0})
    if not found:
        raise ConfigError(f"none of {len(tables)} tables has version {', '.join(map(str, versions))}")
    return found


def _choose(hook: LakeHook, patterns: Sequence[str]) -> list[tuple[str, str]]:
    rows: list[dict[str, Any]] = []
    if any(character in pattern for pattern in patterns for character in _PATTERN):
        after = ""
        while page := hook.list_tables(after):
            rows += page
            after = page[-1]["table_id"]
    found: dict[str, str] = {}
    for text in patterns:
        pattern = text.rstrip("/")
        if not any(character in pattern for character in _PATTERN):
            path = normalise_base_path(pattern)
            found[path] = path.rsplit("/", 1)[-1]
            continue
        matching = [row for row in rows if fnmatch.fnmatchcase(row["base_path"], pattern)]
        if not matching:
            raise ConfigError(f"tables {pattern}: none of the {len(rows)} tables of the registry matches it")
        found |= {row["base_path"]: row["table_name"] for row in matching}
    return sorted(found.items())


def _check_table(hook: LakeHook, target: int, table: tuple[str, str]) -> UpgradePlan:
    path, name = table
    plan = partial(UpgradePlan, path, name)
    version = 0
    try:
        require_allowed_table(path)
        storage = table_opener(None)(path)
        version = load_table_properties(storage).version
        mark = load_upgrade_mark(storage)
        if mark is not None:
            if mark.goal == target:
                return plan(mark.began_at, target, UpgradeState.GOES_ON)
            what = f"a change of its version from {mark.began_at} to {mark.goal} is not finished"
            line = refuse(UPGRADE_MARK, what, f"run lake_upgrade again with version {mark.goal}")
            return plan(version, target, UpgradeState.REFUSED, (line,))
        if version == target:
            return plan(version, target, UpgradeState.DONE)
        policy = policy_of(path)
        rule = heartbeat_rule(policy.hudi_options)
        now_ms = int(time.time() * 1000)
        evidence = collect_evidence(storage, now_ms, rule, policy.spark_conf, hudi_options=policy.hudi_options)
        table_id = table_id_of(path)
        streams = [str(sink["name"]) for sink in hook.list_sinks(table_id)]
        state, lines = check_upgrade(evidence, target, policy.hudi_options, streams, find_holds(hook, table_id))
        return plan(version, target, state, lines)
    except HalfMovedError:
        return plan(version, target, UpgradeState.GOES_ON if target > version else UpgradeState.REFUSED)
    except LakeError as error:
        return plan(version, target, UpgradeState.REFUSED, (refuse("table", f"{error}", "see airflow lake doctor"),))


# --- Turns: a few tables at once, wave by wave


class UpgradeTurn(StrEnum):
    """What a table's task does now."""

    BEGIN = "begin"
    WAIT = "wait"
    STOP = "stop"
    """Too many tables have failed."""


@dataclass(frozen=True, slots=True)
class UpgradeBudget:
    """How many tables change at once, how many are in a wave, and how many may fail."""

    at_once: int
    wave: int
    most_failed: int


_ENDED = frozenset({"success", "failed", "skipped", "upstream_failed", "removed"})


def find_turn(at: int, states: Mapping[int, str | None], budget: UpgradeBudget) -> UpgradeTurn:
    """Return what the task of the table at this place does; `states` are those of the tasks, by place.

    Only tasks of earlier places count, so two that ask at the same moment never both begin in one place.
    """
    if sum(state == "failed" for state in states.values()) > budget.most_failed:
        return UpgradeTurn.STOP
    before = [place for place in range(at) if states.get(place) not in _ENDED]
    wave = max(1, budget.wave)
    if any(place < at // wave * wave for place in before) or len(before) >= max(1, budget.at_once):
        return UpgradeTurn.WAIT
    return UpgradeTurn.BEGIN
