"""What no retry gets past: states of a table in which Hudi fails each time, found by names and sizes of files. Pure.

Planner, doctor and Spark job find and explain them alike. Standard library only: this file travels to the driver.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from airflow_lake_provider.shared.actions import Action

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

_PLAN = re.compile(r"(\d{14,17})\.(compaction|logcompaction|clustering|clean|indexing|rollback)\.requested")
# Hudi reads these plans to know the file slices of a table: without them it can neither write nor plan.
_READ_BY_ALL = frozenset({Action.COMPACTION, Action.LOGCOMPACTION})
_SEE = "`airflow lake doctor` names the repair"


def find_empty_plans(files: Iterable[tuple[str, int]]) -> tuple[str, ...]:
    """Return the pending plans of zero bytes among a timeline's files (name and size), oldest first.

    In layout 1 a clustering's plan has the name of an insert overwrite, whose file may be empty: it is left out.
    """
    names = dict(files)
    completed = {re.split(r"[._]", name, maxsplit=1)[0] for name in names if not name.endswith(_PENDING)}
    found = (name for name, size in names.items() if not size and _PLAN.fullmatch(name))
    return tuple(sorted(name for name in found if name.partition(".")[0] not in completed))


_PENDING = (".requested", ".inflight", ".crc")


def stops_all(plan: str) -> bool:
    """Whether every writer and every service fails at an empty plan, and not only the service that would execute it."""
    found = _PLAN.fullmatch(plan)
    return found is not None and found[2] in _READ_BY_ALL


def find_stopping(service: str, plans: Iterable[str]) -> str:
    """Return why a service cannot run next to empty plans, and what names the repair; empty when it can."""
    for plan in plans:
        found = _PLAN.fullmatch(plan)
        if found is not None and (found[2] in _READ_BY_ALL or found[2] == service):
            return f"{explain_empty_plan(plan)}; {_SEE} (empty_plan)"
    return ""


_FIRST_VERSION_OF_OWN_LOGS = 8


def find_emptied_logs(table_version: int, last_rollback: str) -> str:
    """Return why Hudi 1.2 may fail to compact the log files of a table; empty when it does not.

    Before table version 8 a rollback leaves the blocks of its write in the log files. For a file slice without others
    `FileGroupReaderBasedAppendHandle` writes nothing, and then fails at the statistics of nothing. `last_rollback`
    is the newest completed one on the active timeline, empty without one.
    """
    if table_version >= _FIRST_VERSION_OF_OWN_LOGS or not last_rollback:
        return ""
    return (
        f"Hudi 1.2 fails to compact log files of which a rollback ({last_rollback}) took back every block, in tables "
        f"of version {table_version}; compaction merges them"
    )


def explain_empty_plan(plan: str) -> str:
    """Return what is wrong with an empty plan, in words."""
    who = "every writer and service" if stops_all(plan) else "the service that would execute it"
    return f"the plan {plan} is empty (0 bytes), so {who} fails"


def explain_pending_restore(restores: Iterable[str]) -> str:
    """Return why no service may run; empty without a pending restore. `restores` are requested times.

    Hudi refuses each write then (`BaseHoodieWriteClient.validateAgainstTableProperties`), but not a service. What one
    commits is not in the restore's plan: rows that the restore takes back would be in its files.
    """
    named = ", ".join(sorted(restores))
    if not named:
        return ""
    return (
        f"the restore {named} is pending: it takes writes back by a plan that knows no later instant, so no service "
        "may begin before it has completed: run the same restore again"
    )


def explain_lost_metadata(partitions: Collection[str]) -> str:
    """Return what is wrong with a table whose metadata table is gone; `partitions` are those that it should have."""
    return (
        f"hoodie.table.metadata.partitions of hoodie.properties lists {', '.join(sorted(partitions))}, and there is no "
        "table in .hoodie/metadata, so every writer and service that uses it fails"
    )


def point_to_lost_metadata(partitions: Collection[str]) -> str:
    """Return the same, and what names the repair."""
    return f"{explain_lost_metadata(partitions)}; {_SEE} (lost_metadata_table)"


def explain_inner_table(folder: str, *, is_in_metadata: bool | None) -> str:
    """Return why a service must not run where another table lies in a folder below the base path.

    `is_in_metadata`: the metadata table was built when that folder was there, and lists its partitions; None: there is
    one, and it was not asked.
    """
    if_asked = "if" if is_in_metadata is None else "as"
    then = (
        f", and run `call delete_metadata_table` of Hudi's SQL, {if_asked} the metadata table lists its files; the "
        "next write builds it again"
    )
    return (
        f"another Hudi table lies in {folder} below the base path, and Hudi takes its partitions for this table's: "
        "readers without the metadata table would see its rows, and a service would rewrite or remove its files; move "
        f"that table, with its writers, out of this table's folder{'' if is_in_metadata is False else then}"
    )
