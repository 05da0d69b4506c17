"""The setup and the teardown that hold a table's files, and a clean that a hold overtakes while it is prepared."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException

from airflow_lake_provider.errors import HoldLostError, ServiceFailedError
from airflow_lake_provider.execution.arguments import require_known_holds
from airflow_lake_provider.job_contract import SAFEPOINT, JobRequest, Mode, Service, ServiceRequest
from airflow_lake_provider.operators import hold as module
from airflow_lake_provider.operators.hold import LakeHoldOperator, LakeReleaseOperator

CONTEXT: Any = {"run_id": "manual__1"}


@dataclass
class FakeHook:
    """Answers as the manager does; a clean that began before ends after the first renewal."""

    safepoint: str | None = None
    is_lost: bool = False
    wanted: list[dict[str, Any]] = field(default_factory=list)
    renewed: int = 0
    ended: list[tuple[str, str]] = field(default_factory=list)

    def add_hold(self, table: str, wanted: dict[str, Any]) -> dict[str, Any]:
        self.wanted.append(wanted | {"table": table})
        return {"table_id": "t", "hold_id": "h", "hold": "20260101", "is_firm": False, "waits_for": ["clean-1"]}

    def renew_hold(self, table_id: str, hold_id: str) -> dict[str, Any]:
        if self.is_lost:
            raise HoldLostError("it has ended")
        self.renewed += 1
        return {"hold_id": hold_id, "hold": "20260101", "is_firm": True, "waits_for": []}

    def end_hold(self, table_id: str, hold_id: str) -> None:
        self.ended.append((table_id, hold_id))

    def find_safepoint(self, table_id: str) -> str | None:
        return self.safepoint


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> FakeHook:
    found = FakeHook()
    monkeypatch.setattr(module, "LakeHook", lambda _conn_id: found)
    monkeypatch.setattr(module, "POLL_S", 0.0)
    return found


def test_setup_holds_for_the_whole_time_and_waits_and_teardown_releases(hook: FakeHook) -> None:
    setup = LakeHoldOperator(task_id="hold", table="/lake/orders", lasts_s=7200, reason="backfill")
    held = setup.execute(CONTEXT)
    assert held == {"table_id": "t", "hold_id": "h", "instant": "20260101"}
    (wanted,) = hook.wanted
    assert (wanted["ttl_s"], wanted["lasts_s"], wanted["reason"]) == (7200, 7200, "backfill (manual__1)")
    assert hook.renewed == 1
    LakeReleaseOperator(task_id="release", hold=held).execute(CONTEXT)
    LakeReleaseOperator(task_id="again", hold=None).execute(CONTEXT)
    assert hook.ended == [("t", "h")]


def test_setup_that_fails_leaves_no_hold_behind(hook: FakeHook) -> None:
    hook.is_lost = True
    with pytest.raises(AirflowException, match="it has ended"):
        LakeHoldOperator(task_id="hold", table="/lake/orders", lasts_s=7200).execute(CONTEXT)
    assert hook.ended == [("t", "h")]


@pytest.mark.parametrize(
    ("known", "now", "is_overtaken"),
    [
        (None, None, False),
        (None, "5", True),
        ("5", "5", False),
        ("5", "3", True),
        ("3", "5", False),
        ("5", None, False),
    ],
)
def test_clean_that_knows_less_than_what_is_held_does_not_begin(
    hook: FakeHook, known: str | None, now: str | None, is_overtaken: bool
) -> None:
    hook.safepoint = now
    options = {} if known is None else {SAFEPOINT: known}
    services = (ServiceRequest(Service.CLEAN, Mode.SCHEDULE_AND_EXECUTE, (), {}),)
    request = JobRequest("job", "/lake/orders", "orders", services, "/tmp/result", hudi_options=options)
    if is_overtaken:
        with pytest.raises(ServiceFailedError, match="came while the job was prepared"):
            require_known_holds(hook, request)  # type: ignore[arg-type]
    else:
        require_known_holds(hook, request)  # type: ignore[arg-type]
