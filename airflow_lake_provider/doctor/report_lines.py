"""The lines of a check before an action on a whole table: what forbids it, what it does, what to do about it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from airflow_lake_provider.job_contract import METADATA_TABLE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from airflow_lake_provider.doctor.evidence import Evidence

MAX_NAMED = 10
"""Number of savepoints, damaged files or plans that a line names."""


class LineKind(StrEnum):
    """What a line of the report is about."""

    REFUSED = "refused"
    """It forbids the action."""
    TAKEN_BACK = "taken back"
    """A write, or a plan of a service, that is gone afterwards."""
    INDEX = "index"
    """An index that the action takes away."""
    METADATA = "metadata"
    """What becomes of the metadata table."""
    STREAM = "stream"
    """A sink of replication that begins again with a snapshot."""
    SAVEPOINT = "savepoint"
    """A savepoint of before the action."""
    SETTING = "setting"
    """What the action has to be run with."""


@dataclass(frozen=True, slots=True)
class ReportLine:
    """One line of the report: what it is about, the instant or name, what is so, and what to do."""

    kind: LineKind
    subject: str
    what: str
    remedy: str = ""
    rows: int | None = None
    """How many rows the write changed, by its own statistics; none for a plan, or where they cannot be read."""
    bytes: int | None = None


def is_refused(lines: Iterable[ReportLine]) -> bool:
    """Whether a line forbids the action."""
    return any(line.kind is LineKind.REFUSED for line in lines)


def describe_line(line: ReportLine) -> str:
    """Return a line in words, what to do on a line of its own."""
    parts = [f"{line.rows:,} rows"] if line.rows is not None else []
    parts += [f"{line.bytes:,} bytes written"] if line.bytes is not None else []
    figures = f", {', '.join(parts)}" if parts else ""
    text = f"{line.kind:<10} {line.subject}: {line.what}{figures}"
    return f"{text}\n{'':<10} do: {line.remedy}" if line.remedy else text


def state_refusals(evidence: Evidence, runs: Iterable[str], holds: Iterable[str]) -> Iterator[ReportLine]:
    """Yield what forbids each action on a whole table: living writers, runs, readers' holds, damage."""
    for living in evidence.living():
        yield refuse(
            living,
            "its heartbeat lives: what it commits would not be part of the plan",
            "stop the writer or wait for its end",
        )
    for run in runs:
        yield refuse(run, "this run of a service has the table's lease", "pause the table and wait for the run's end")
    for hold in holds:
        yield refuse(hold, "a reader holds files of this table", "wait for the reader, or airflow lake hold release")
    damaged = [problem.file_name for problem in evidence.problems]
    empty = [*evidence.empty_plans, *(seen.path for seen in evidence.empty_metadata_plans)]
    for what, names in (("damaged or unknown", damaged), ("empty", empty)):
        if names:
            yield refuse(listed_names(names), f"these files of the timeline are {what}", "see airflow lake doctor")
    if evidence.metadata_problem:
        yield refuse(METADATA_TABLE, evidence.metadata_problem, "see airflow lake doctor")


def refuse(subject: str, what: str, remedy: str) -> ReportLine:
    """Return a line that forbids the action."""
    return ReportLine(LineKind.REFUSED, subject, what, remedy)


def listed_names(names: Iterable[str]) -> str:
    """Return names in their order, the first ones of many."""
    ordered = sorted(names)
    more = f" and {len(ordered) - MAX_NAMED} more" if len(ordered) > MAX_NAMED else ""
    return ", ".join(ordered[:MAX_NAMED]) + more
