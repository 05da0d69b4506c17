from __future__ import annotations

import pytest

from airflow_lake_provider.execution.retry import REMEDIES, Pauses, pause_s
from airflow_lake_provider.job_contract import FailureKind

PAUSES = Pauses(delay_s=30, max_delay_s=200)


@pytest.mark.parametrize(
    ("kind", "pauses_s"),
    [
        pytest.param(FailureKind.LOCK, [30, 60, 90, 120], id="lock-later-and-later"),
        pytest.param(FailureKind.BUSY, [60, 120, 180, 200], id="busy-until-the-other-is-done"),
        pytest.param(FailureKind.CONFLICT, [60, 120, 180, 200], id="conflict-waits-for-the-writer"),
        pytest.param(FailureKind.OUT_OF_MEMORY, [0, 0, 0, 0], id="memory-at-once"),
        pytest.param(FailureKind.OTHER, [30, 60, 120, 200], id="other-doubles"),
    ],
)
def test_pause_is_what_the_failure_calls_for(kind: FailureKind, pauses_s: list[float]) -> None:
    assert [pause_s(REMEDIES[kind], number, PAUSES) for number in (1, 2, 3, 4)] == pauses_s


def test_every_kind_of_failure_has_a_remedy() -> None:
    assert set(REMEDIES) == set(FailureKind)
