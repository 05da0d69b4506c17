import ast
import json
import sys
from pathlib import Path

import pytest

from airflow_lake_provider import job_contract
from airflow_lake_provider.job_contract import (
    ContractError,
    FailureKind,
    JobRequest,
    JobResult,
    Mode,
    Outcome,
    Service,
    ServiceRequest,
    ServiceResult,
    Submitter,
    from_json,
    to_json,
)

SMALLEST = JobRequest("job", "/lake/t", "t", (), "/work/result.json")
FULLEST = JobRequest(
    job_id='run "1"/2',
    base_path="s3a://lake/für; $(touch x)",
    table_name="Tabelle 'ß'\n",
    services=(
        ServiceRequest(Service.COMPACTION, Mode.EXECUTE, ("20261121045502123", "20261121045502124")),
        ServiceRequest(Service.COMPACTION, Mode.SCHEDULE_AND_EXECUTE, options={"hoodie.compaction.target.io": "1"}),
    ),
    result_path="/work/result.json",
    hudi_options={"hoodie.write.lock.provider": "x.ZookeeperBasedLockProvider"},
    submitter=Submitter("worker-1", 4711, 123456789),
)
RESULT = JobResult(
    job_id="job",
    services=(
        ServiceResult(
            Service.COMPACTION,
            Outcome.COMPLETED,
            ("20261121045502123",),
            ("20261121045502123",),
            started_at="2026-11-21T04:55:02+00:00",
            ended_at="2026-11-21T04:55:04+00:00",
        ),
        ServiceResult(Service.COMPACTION, Outcome.FAILED, failure_kind=FailureKind.BUSY, message="another has it"),
    ),
    spark_application_id="local-1",
    memory={"spark.driver.memory": "4g"},
)


@pytest.mark.parametrize("request_", [pytest.param(SMALLEST, id="smallest"), pytest.param(FULLEST, id="fullest")])
def test_request_survives_its_file(request_: JobRequest) -> None:
    assert from_json(JobRequest, to_json(request_)) == request_


def test_result_survives_its_file() -> None:
    assert from_json(JobResult, to_json(RESULT)) == RESULT
    empty = JobResult("job", ())
    assert from_json(JobResult, to_json(empty)) == empty


@pytest.mark.parametrize(
    ("change", "named"),
    [
        pytest.param({"contract_version": 2}, "contract_version", id="newer-contract"),
        pytest.param({"base_path": None}, "base_path", id="wrong-type"),
        pytest.param(
            {"services": [{"service": "polishing", "mode": "execute", "instants": [], "options": {}}]},
            r"'services\[0\].service' is 'polishing', allowed: compaction",
            id="unknown-service",
        ),
        pytest.param({"services": ["compaction"]}, "service", id="service-is-no-object"),
        pytest.param({"hudi_options": {"a": 1}}, "hudi_options", id="option-is-no-string"),
        pytest.param({"submitter": {"host": "h"}}, "'submitter.pid' is missing", id="half-a-submitter"),
        pytest.param(
            {"submitter": {"host": "h", "pid": True, "start_ticks": 1}}, "'submitter.pid' is True", id="flag-as-number"
        ),
        pytest.param({"tables": []}, "'tables' is unknown", id="unknown-field"),
        pytest.param(
            {"services": [{"service": "clean", "mode": "execute", "instants": ["1", 2], "options": {}}]},
            r"'services\[0\].instants\[1\]' is 2, expected a text",
            id="instant-is-no-text",
        ),
    ],
)
def test_request_that_does_not_fit_is_refused_by_field(change: dict[str, object], named: str) -> None:
    body = json.loads(to_json(SMALLEST)) | change
    with pytest.raises(ContractError, match=named):
        from_json(JobRequest, json.dumps(body))


@pytest.mark.parametrize("text", ["", "{", "[]", '"x"', "{}"])
def test_file_that_is_torn_is_refused(text: str) -> None:
    with pytest.raises(ContractError):
        from_json(JobRequest, text)
    with pytest.raises(ContractError):
        from_json(JobResult, text)


def test_every_field_that_is_missing_is_named() -> None:
    body = json.loads(to_json(RESULT))
    for key in body:
        with pytest.raises(ContractError, match=key):
            from_json(JobResult, json.dumps({name: value for name, value in body.items() if name != key}))


def test_contract_needs_the_standard_library_and_what_travels_with_it_only() -> None:
    tree = ast.parse(Path(job_contract.__file__).read_text(encoding="utf-8"))
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    imported |= {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    others = {name or "" for name in imported if not (name or "").startswith("airflow_lake_provider.shared.")}
    assert {name.split(".")[0] for name in others} <= sys.stdlib_module_names
