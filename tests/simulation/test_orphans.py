"""Random histories of a small table: the search for orphan files never moves one that anything needs.

`LAKE_ORPHAN_HISTORIES=10000` is the long form. The judge is the model's own knowledge of which write made a file and
what became of it (`orphan_model.py`); mistakes that are planted into the evidence must be noticed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "spark_jobs"))

from lake_jobs.services.orphan_rules import FileStanding, Names, TableEvidence
from tests.simulation.orphan_model import (
    File,
    ModelTable,
    NeededFileMovedError,
    commit_document,
)

HISTORIES = int(os.environ.get("LAKE_ORPHAN_HISTORIES", "100"))
MAX_SEEDS_PER_MISTAKE = 400
ROUNDS, STEPS = 6, 12

Mistake = Callable[[ModelTable, TableEvidence], TableEvidence]


def play(seed: int, mistake: Mistake | None = None, *, asks_writers: bool = True) -> tuple[ModelTable, list[File]]:
    """Live one history with a search now and then; raise NeededFileMovedError when it takes what is needed."""
    table, moved = ModelTable(seed), []
    for round in range(ROUNDS + 1):
        if round == ROUNDS:
            table.settle()
        else:
            table.live(STEPS)
        if asks_writers and table.has_unknown_writer():
            continue
        evidence = table.evidence()
        moved += table.take(table.search(evidence if mistake is None else mistake(table, evidence)))
    return table, moved


def test_nothing_that_is_needed_is_moved_and_what_is_certain_is_found() -> None:
    moved = doubtful = 0
    for seed in range(HISTORIES):
        try:
            table, taken = play(seed)
        except NeededFileMovedError as error:
            pytest.fail(f"history {seed}: {error}")
        left = [file.path for file in table.files.values() if table.is_certain_orphan(file)]
        assert not left, f"history {seed}: {left[0]} is an orphan that no search found"
        moved += len(taken)
        doubtful += sum(found.standing is FileStanding.AMBIGUOUS for found in table.search(table.evidence()))
    # A search that moves nothing, or that is sure of everything, would prove nothing.
    assert moved > 2 * HISTORIES
    assert doubtful > HISTORIES // 10


def ignore_savepoints(_table: ModelTable, evidence: TableEvidence) -> TableEvidence:
    return without(evidence, "the savepoint")


def ignore_plans(_table: ModelTable, evidence: TableEvidence) -> TableEvidence:
    return without(evidence, "the compaction", "the clustering", "the clean")


def ignore_pending_rollbacks(table: ModelTable, evidence: TableEvidence) -> TableEvidence:
    removed = {rollback.removes.instant for rollback in table.rollbacks if rollback.removes is not None}
    pending = {time: what for time, what in evidence.pending.items() if time not in removed}
    return replace(without(evidence, "the rollback"), pending=pending)


def ignore_living_writers(table: ModelTable, evidence: TableEvidence) -> TableEvidence:
    alive = {write.instant for write in table.writes if write.is_alive}
    pending = {time: what for time, what in evidence.pending.items() if time not in alive}
    return replace(evidence, pending=pending, living={}, busy_partitions={})


def ignore_where_writers_work(_table: ModelTable, evidence: TableEvidence) -> TableEvidence:
    return replace(evidence, busy_partitions={})


def trust_age_alone(table: ModelTable, evidence: TableEvidence) -> TableEvidence:
    return TableEvidence(evidence.table_version, evidence.first_version, named_by(table), {}, "0", {})


def take_archived_for_unknown(table: ModelTable, evidence: TableEvidence) -> TableEvidence:
    archived = {write.instant for write in table.writes if write.is_archived}
    completed = {time: problem for time, problem in evidence.completed.items() if time not in archived}
    return replace(evidence, listed=Names(), completed=completed, named=named_by(table))


def know_more_than_the_archive(_table: ModelTable, evidence: TableEvidence) -> TableEvidence:
    return replace(evidence, listed=Names(), known_from="0")


def take_log_files_of_version_6_for_those_of_8(_table: ModelTable, evidence: TableEvidence) -> TableEvidence:
    return replace(evidence, table_version=8, first_version=8)


MISTAKES: tuple[Mistake, ...] = (
    ignore_savepoints,
    ignore_plans,
    ignore_pending_rollbacks,
    ignore_living_writers,
    ignore_where_writers_work,
    trust_age_alone,
    take_archived_for_unknown,
    know_more_than_the_archive,
    take_log_files_of_version_6_for_those_of_8,
)


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_every_planted_mistake_is_noticed(mistake: Mistake) -> None:
    for seed in range(MAX_SEEDS_PER_MISTAKE):
        try:
            play(seed, mistake, asks_writers=mistake is not ignore_living_writers)
        except NeededFileMovedError:
            return
    pytest.fail(f"no history of {MAX_SEEDS_PER_MISTAKE} notices {mistake.__name__}")


def test_search_that_does_not_wait_for_writers_that_announced_nothing_is_noticed() -> None:
    for seed in range(MAX_SEEDS_PER_MISTAKE):
        try:
            play(seed, asks_writers=False)
        except NeededFileMovedError:
            return
    pytest.fail(f"no history of {MAX_SEEDS_PER_MISTAKE} notices it")


def without(evidence: TableEvidence, *whose: str) -> TableEvidence:
    kept = tuple((what, names) for what, names in evidence.mentioned if not what.startswith(whose))
    return replace(evidence, mentioned=kept)


def named_by(table: ModelTable) -> Names:
    active = (write for write in table.writes if write.state == "completed" and not write.is_archived)
    return Names(commit_document(write) for write in active)
