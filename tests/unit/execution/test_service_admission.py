"""What a service's task asks before its job, on tables of both layouts."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from airflow_lake_provider.config.service_policies import ConflictPolicy
from airflow_lake_provider.conflict.admission import AdmissionVerdict
from airflow_lake_provider.errors import ServiceRefusedError
from airflow_lake_provider.execution.admission import ServiceAdmission, parse_conflict_policy
from airflow_lake_provider.execution.arguments import parse_settings
from airflow_lake_provider.job_contract import Mode, Service, ServiceRequest
from airflow_lake_provider.storage.table_storage import open_storage
from tests.support.fixture_tables import unpack
from tests.unit.conflict.fake_table import commit_body, marker

PLAN, WRITER = "20991231000000001", "20991231000000002"
OSLO = ("city=Oslo", "f1-0")


def plan_clustering(timeline: Path, action: str) -> None:
    slices = [{"partitionPath": OSLO[0], "fileId": OSLO[1]}]
    body = {"operationType": "CLUSTER", "clusteringPlan": {"inputGroups": [{"slices": slices}]}}
    (timeline / f"{PLAN}.{action}.requested").write_text(json.dumps(body))


def begin_write(meta: Path, timeline: Path) -> None:
    for folder in (meta / ".heartbeat", (meta / ".temp" / WRITER / marker(WRITER, *OSLO)).parent):
        folder.mkdir(parents=True, exist_ok=True)
    (meta / ".heartbeat" / WRITER).touch()
    (timeline / f"{WRITER}.commit.requested").touch()
    (timeline / f"{WRITER}.inflight").write_bytes(commit_body([OSLO]))
    (meta / ".temp" / WRITER / marker(WRITER, *OSLO)).touch()


@pytest.mark.parametrize(("table", "action"), [("cow_v9", "clustering"), ("cow_v6", "replacecommit")])
def test_pending_plan_that_holds_a_writer_up_is_withdrawn_first(table: str, action: str, tmp_path: Path) -> None:
    path = unpack(table, tmp_path).path
    meta = path / ".hoodie"
    timeline = meta / "timeline" if table.endswith("v9") else meta
    plan_clustering(timeline, action)
    # What an executor of this service leaves, and others do not.
    (meta / ".heartbeat").mkdir(exist_ok=True)
    (meta / ".heartbeat" / PLAN).touch()
    os.utime(meta / ".heartbeat" / PLAN, (1, 1))
    admission = ServiceAdmission(str(path), open_storage, ConflictPolicy(), {}, {})
    wanted = ServiceRequest(Service.CLUSTERING, Mode.SCHEDULE_AND_EXECUTE)
    assert admission.check(wanted).verdict is AdmissionVerdict.GO
    begin_write(meta, timeline)
    found = admission.check(wanted)
    assert (found.verdict, found.withdraw, found.in_the_way) == (AdmissionVerdict.WAIT, (PLAN,), (WRITER,))


def test_partition_filter_among_the_hudi_settings_is_kept(tmp_path: Path) -> None:
    path = unpack("cow_v9", tmp_path).path
    begin_write(path / ".hoodie", path / ".hoodie" / "timeline")
    wanted = ServiceRequest(Service.CLUSTERING, Mode.SCHEDULE_AND_EXECUTE)
    free = ServiceAdmission(str(path), open_storage, ConflictPolicy(), {}, {}).check(wanted)
    assert free.verdict is AdmissionVerdict.SHRINK
    options = {"hoodie.clustering.plan.partition.filter.mode": "RECENT_DAYS"}
    found = ServiceAdmission(str(path), open_storage, ConflictPolicy(), options, {}).check(wanted)
    assert (found.verdict, found.options) == (AdmissionVerdict.WAIT, {})


@pytest.mark.parametrize(
    ("argument", "policy"),
    [
        (None, ConflictPolicy()),
        ({"enabled": "False", "period_s": "2.5"}, ConflictPolicy(enabled=False, period_s=2.5)),
        ({"enabled": "true", "initial_delay_s": "0.1"}, ConflictPolicy(initial_delay_s=0.1)),
        (
            {"enabled": False, "period_s": 3, "strategy": "Mine"},
            ConflictPolicy(enabled=False, strategy="Mine", period_s=3.0),
        ),
        ('{"enabled": true, "period_s": 0.5}', ConflictPolicy(period_s=0.5)),
        ({"enabled": " TRUE ", "strategy": " Mine "}, ConflictPolicy(strategy="Mine")),
    ],
)
def test_policy_travels_as_text(argument: Mapping[str, object] | str | None, policy: ConflictPolicy) -> None:
    assert parse_conflict_policy(parse_settings(argument, "conflict"), "/lake/orders") == policy


@pytest.mark.parametrize(
    ("argument", "says"),
    [
        ({"enabled": "yes"}, "enabled is 'yes', allowed: true, false"),
        ({"enabled": "1"}, "enabled is '1', allowed: true, false"),
        ({"enabled": ""}, "enabled is '', allowed: true, false"),
        ({"period": "5"}, "unknown setting 'period' in conflict, allowed: enabled, strategy, period_s"),
        ({"period_s": "-1"}, "period_s is '-1', allowed: seconds above 0"),
        ({"period_s": "nan"}, "period_s is 'nan', allowed: seconds above 0"),
        ({"period_s": "inf"}, "period_s is 'inf', allowed: seconds above 0"),
        ({"initial_delay_s": "soon"}, "initial_delay_s is 'soon', allowed: seconds above 0"),
        ({"strategy": ""}, "strategy is '', allowed: a name"),
    ],
)
def test_policy_that_says_nothing_certain_is_refused(argument: Mapping[str, str], says: str) -> None:
    with pytest.raises(ServiceRefusedError) as raised:
        parse_conflict_policy(argument, "/lake/orders")
    assert f"table /lake/orders: conflict: {says}" in str(raised.value)
