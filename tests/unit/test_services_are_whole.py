"""Each table service has all of its places: traits, policy, decision, options, Spark job, a line of documentation."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from airflow_lake_provider.config.policies import TablePolicy
from airflow_lake_provider.config.service_policies import ServicePolicies, ServicePolicy
from airflow_lake_provider.hudi.timeline import Timeline
from airflow_lake_provider.job_contract import TRAITS, Mode, Outcome, Service, ServiceRequest, ServiceResult
from airflow_lake_provider.planner.decide import decide, service_options
from airflow_lake_provider.planner.facts import TableFacts
from airflow_lake_provider.planner.verdict import judge
from tests.unit.planner.views import NOW_MS, view

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("service", Service)
def test_service_has_traits_a_policy_and_options(service: Service) -> None:
    assert service in TRAITS
    policy = ServicePolicies.model_fields[service.value].annotation
    assert issubclass(policy, ServicePolicy), (
        f"{policy.__name__} derives from ServicePolicy: every service can be paused"
    )
    service_options(service, TablePolicy())


def test_every_service_is_decided() -> None:
    decisions = decide(TableFacts(view()), TablePolicy(), NOW_MS)
    assert sorted(decision.service for decision in decisions) == sorted(Service)


@pytest.mark.parametrize("service", Service)
def test_traits_name_a_function_of_the_spark_jobs(service: Service) -> None:
    module, _, function = TRAITS[service].job.partition(":")
    path = ROOT / "spark_jobs" / "lake_jobs" / Path(*module.split(".")).with_suffix(".py")
    defined = ast.parse(path.read_text(encoding="utf-8")).body
    assert function in {node.name for node in defined if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("service", Service)
def test_service_is_in_the_documentation(service: Service) -> None:
    assert f"`{service}`" in (ROOT / "docs" / "services.md").read_text(encoding="utf-8")


# Of a rollback the timeline alone says whether anything is left.
@pytest.mark.parametrize("service", [service for service in Service if service is not Service.ROLLBACK])
def test_job_that_died_without_a_report_has_failed_whatever_its_service(service: Service) -> None:
    request = ServiceRequest(service, Mode.EXECUTE, ("20261121045502123",))
    assert judge(Timeline(), Timeline(), request, None).outcome is Outcome.FAILED


def test_service_that_leaves_nothing_on_a_timeline_is_judged_by_its_report() -> None:
    request = ServiceRequest(Service.ORPHANS, Mode.EXECUTE)
    verdict = judge(
        Timeline(), Timeline(), request, ServiceResult(Service.ORPHANS, Outcome.COMPLETED, message="3 files")
    )
    assert (verdict.outcome, verdict.reason) == (Outcome.COMPLETED, "3 files")
