"""What a restore does besides taking writes back: which indexes it drops first, and builds afterwards. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_lake_provider.doctor.report_lines import LineKind, ReportLine, describe_line, is_refused
from airflow_lake_provider.doctor.restore_check import check_restore, sum_up
from airflow_lake_provider.indexing.index_spec import IndexKind, spell_index

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_lake_provider.doctor.restore_check import RestoreFacts
    from airflow_lake_provider.indexing.index_spec import IndexDefinition


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """A check's report, and what the steps after it do."""

    report: str
    refused: bool
    takes_back: tuple[str, ...] = ()
    """Requested times of the writes and plans that a person has seen."""
    drops: tuple[str, ...] = ()
    """Indexes that are dropped before, as the tables file spells them."""
    builds: tuple[str, ...] = ()
    """Indexes that are built afterwards."""
    without_metadata: bool = False
    """The metadata table does not reach back: Hudi removes it, and the last step builds it."""


def plan_restore(facts: RestoreFacts, definitions: Mapping[str, IndexDefinition]) -> RestorePlan:
    """Return the plan of a restore; `definitions` are those of the table's indexes, by partition."""
    has_metadata = bool(facts.evidence.properties.metadata_partitions)
    without_metadata = has_metadata and not facts.reaches_back
    lost = facts.index_births if without_metadata else facts.younger_indexes
    spelled = {name: spell_index(name, definitions.get(name)) for name in sorted(lost)}
    unknown = tuple(
        ReportLine(LineKind.REFUSED, name, "this index was not made by the provider", "drop it first, build it again")
        for name, text in spelled.items()
        if text is None
    )
    lines = (*unknown, *check_restore(facts))
    indexes = tuple(text for text in spelled.values() if text is not None)
    return RestorePlan(
        "\n".join([*map(describe_line, lines), sum_up(lines)]),
        is_refused(lines),
        tuple(line.subject for line in lines if line.kind is LineKind.TAKEN_BACK),
        () if without_metadata else indexes,
        (IndexKind.FILES.value, *indexes) if without_metadata else indexes,
        without_metadata,
    )
