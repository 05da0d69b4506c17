"""What a reader needs kept, by the timeline as it begins."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from airflow_lake_provider.errors import HoldRefusedError
from airflow_lake_provider.hudi.instant import Instant
from airflow_lake_provider.hudi.timeline import Timeline
from airflow_lake_provider.planner.reader_hold import NeededFiles, find_needed
from airflow_lake_provider.shared.actions import Action, State

NOW_MS = int(datetime(2026, 11, 21, 13, tzinfo=UTC).timestamp() * 1000)


def write(requested: int, completed: int | None = None, action: Action = Action.COMMIT) -> Instant:
    times = [f"2026112112{number:02d}00000" for number in (requested, completed or 0)]
    state = State.COMPLETED if completed else State.INFLIGHT
    return Instant(times[0], action, state, times[1] if completed else None, "file")


def at(minute: int) -> str:
    return f"2026112112{minute:02d}00000"


def ms(minute: int) -> int:
    return NOW_MS - (60 - minute) * 60_000


@pytest.mark.parametrize(
    ("instants", "as_of", "expected"),
    [
        pytest.param([write(1, 2)], "", NeededFiles(at(1), NOW_MS), id="one-commit"),
        pytest.param([write(1, 2), write(3, 4)], "", NeededFiles(at(3), NOW_MS), id="the-newest"),
        pytest.param([write(1, 9), write(3, 4)], "", NeededFiles(at(3), NOW_MS), id="by-request-not-by-completion"),
        pytest.param([write(1), write(3, 4)], "", NeededFiles(at(1), NOW_MS), id="a-pending-one-may-complete-later"),
        pytest.param(
            [write(2, None, Action.COMPACTION), write(3, 4)], "", NeededFiles(at(2), NOW_MS), id="so-may-a-compaction"
        ),
        pytest.param([write(1, 2), write(3, 4)], at(2), NeededFiles(at(1), ms(4)), id="the-past"),
        pytest.param([write(1, 6), write(3, 4)], at(5), NeededFiles(at(1), NOW_MS), id="one-that-completed-later"),
        pytest.param([write(1, 2), write(3, 4)], at(3), NeededFiles(at(3), NOW_MS), id="by-a-requested-time"),
        pytest.param([write(1, 2), write(59, 61)], at(5), NeededFiles(at(1), NOW_MS), id="a-time-that-is-none"),
    ],
)
def test_what_a_reader_needs(instants: list[Instant], as_of: str, expected: NeededFiles) -> None:
    assert find_needed(Timeline(tuple(instants)), as_of, UTC, NOW_MS) == expected


@pytest.mark.parametrize("instants", [[], [write(1)], [write(3, 4)]])
def test_instant_before_every_commit_is_refused(instants: list[Instant]) -> None:
    with pytest.raises(HoldRefusedError, match="no commit of the table was there at"):
        find_needed(Timeline(tuple(instants)), at(2), UTC, NOW_MS)
