"""While releases are mixed, no job runs a request that it does not know whole, and its task shows why."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest

from airflow_lake_provider.execution.engines import warm
from airflow_lake_provider.hudi.timeline import Timeline
from airflow_lake_provider.job_contract import (
    SAFEPOINT,
    ContractError,
    JobRequest,
    JobResult,
    Mode,
    Outcome,
    Service,
    ServiceRequest,
    ServiceResult,
    from_json,
    to_json,
)
from airflow_lake_provider.planner.verdict import judge
from lake_jobs.driver.standing import ItemKind, StandingApplication, StandingSettings, failed_result

REQUEST = ServiceRequest(Service.CLEAN, Mode.SCHEDULE_AND_EXECUTE, (), {SAFEPOINT: "0"})
TEXT = to_json(JobRequest("j", "/lake/t", "t", (REQUEST,), "/tmp/r.json"))
CHANGES: Mapping[str, Callable[[dict[str, Any]], object]] = {
    "'services[0].deadline_ms' is unknown": lambda body: body["services"][0].update(deadline_ms=5),
    "'only_when' is unknown": lambda body: body.update(only_when="night"),
    "contract_version is 2": lambda body: body.update(contract_version=2),
    "option lake.clean.retained_bytes is unknown": lambda body: body["services"][0]["options"].update(
        {"lake.clean.retained_bytes": "7"}
    ),
    "option lake.fence is unknown": lambda body: body["hudi_options"].update({"lake.fence": "7"}),
}


class Spark:
    def __getattr__(self, _name: str) -> Callable[..., None]:
        return lambda *_args: None


class Source:
    def __init__(self, text: str) -> None:
        self.todo = {"one": text}
        self.ended: dict[str, JobResult] = {}

    def pull(self, _free: int, _lines: object, _known: object) -> tuple[dict[str, str], dict[str, str]]:
        found, self.todo = self.todo, {}
        return found, {}

    def finish(self, item_id: str, result: JobResult, _lines: object, *, takes_next: bool) -> dict[str, str]:
        assert takes_next in {True, False}
        self.ended[item_id] = result
        return {}


@pytest.mark.parametrize("said", sorted(CHANGES))
def test_request_of_another_release_is_refused_and_the_task_reads_why(said: str) -> None:
    body = json.loads(TEXT)
    CHANGES[said](body)
    with pytest.raises(ContractError):
        from_json(JobRequest, json.dumps(body))
    source = Source(json.dumps(body))
    ran = []

    def run(request: JobRequest, _find_cancelled: Callable[[], str]) -> JobResult:
        ran.append(request)
        return JobResult(request.job_id, (ServiceResult(Service.CLEAN, Outcome.NOTHING_TO_DO),))

    kind = ItemKind(partial(from_json, JobRequest), run, failed_result)
    StandingApplication(source, StandingSettings(2, 0.1, 5), Spark(), kind).run()
    assert ran == []
    answer = from_json(JobResult, to_json(source.ended["one"])).find(Service.CLEAN)
    verdict = judge(Timeline(()), Timeline(()), REQUEST, answer)
    assert verdict.outcome is Outcome.FAILED
    assert said in verdict.reason


def test_application_of_another_release_is_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = ("q", "c", {"a": "b"})
    keys = {warm.application_key(*kind)}
    monkeypatch.setattr(warm, "__version__", "99")
    keys.add(warm.application_key(*kind))
    monkeypatch.setattr(warm, "CONTRACT_VERSION", 99)
    keys.add(warm.application_key(*kind))
    assert len(keys) == 3


def test_every_own_option_of_a_request_is_known() -> None:
    import airflow_lake_provider.job_contract as contract

    names = {value for value in vars(contract).values() if isinstance(value, str) and value.startswith("lake.")}
    prefixes = {
        contract.ORPHAN_OPTIONS,
        contract.INDEX_OPTIONS,
        contract.TTL_OPTIONS,
        contract.ERASE_OPTIONS,
        contract.WORK_OPTIONS,
        contract.LAKE_PREFIX,
    }
    assert names - prefixes == contract.LAKE_OPTIONS
