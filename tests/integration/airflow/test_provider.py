"""What Airflow itself sees of the provider."""

from __future__ import annotations

import copy
import json
import uuid
from pathlib import Path
from typing import Any, cast

import pytest

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[3]


def test_provider_info_is_valid_and_discovered() -> None:
    from airflow.providers_manager import ProvidersManager
    from airflow.sdk.providers_manager_runtime import ProvidersManagerTaskRuntime

    manager = ProvidersManager()
    assert "airflow-lake-provider" in manager.providers
    assert "lake" in ProvidersManagerTaskRuntime().hooks
    assert "airflow_lake_provider.plugins.shipped.LakeDBManager" in manager.db_managers


def test_manager_app_is_mounted_in_the_api_server() -> None:
    """A plugin that fails to import is only logged, and unmounted paths answer 200 with the UI's page."""
    from airflow.api_fastapi.app import create_app
    from starlette.testclient import TestClient

    client = TestClient(create_app(apps="core"))
    health = client.get("/v1/hoodie/health")
    assert health.headers["content-type"] == "application/json"
    assert health.json()["status"] == "ok"
    assert client.post("/v1/hoodie/callback", json={}).status_code == 401


def test_pages_are_in_the_ui_for_users_that_may_read_the_dag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS", "False")
    from airflow.api_fastapi.app import create_app, get_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
    from starlette.testclient import TestClient

    client = TestClient(create_app(apps="core"))
    assert client.get("/lake/api/me").status_code == 401
    for role, expected in ((None, 403), ("viewer", 200)):
        user = SimpleAuthManagerUser(username="somebody", role=role)
        client.cookies.set("_token", get_auth_manager().generate_jwt(user))
        assert client.get("/lake/api/me").status_code == expected
    may = {name: value for name, value in client.get("/lake/api/me").json().items() if name.startswith("may_")}
    assert not any(may.values())
    user = SimpleAuthManagerUser(username="boss", role="admin")
    client.cookies.set("_token", get_auth_manager().generate_jwt(user))
    assert all(client.get("/lake/api/me").json()[name] for name in may)
    plugins = client.get("/api/v2/plugins").json()["plugins"]
    views = next(plugin["react_apps"] for plugin in plugins if plugin["name"] == "lake")
    for view in views:
        assert client.get(f"/{view['bundle_url']}").headers["content-type"].startswith("text/javascript")


def test_table_is_forgotten_with_airflows_login_and_permission(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS", "False")
    from airflow.api_fastapi.app import create_app, get_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
    from starlette.testclient import TestClient

    from airflow_lake_provider.manager.db.rows import Notice, Source
    from airflow_lake_provider.plugins.lake_plugin import find_roles, open_registry

    path = f"/lake/{uuid.uuid4().hex}"
    table_id = open_registry().mark_dirty(Notice(path, "gone", Source.HINT)).table_id
    client, forget = TestClient(create_app(apps="core")), f"/lake/api/tables/{table_id}/forget"
    assert client.post(forget, json={}).status_code == 401
    for role, expected in (("viewer", 403), ("admin", 204)):
        assert open_registry().find(table_id) is not None
        user = SimpleAuthManagerUser(username=f"the-{role}", role=role)
        assert find_roles(user) == {role}
        client.cookies.set("_token", get_auth_manager().generate_jwt(user))
        assert client.post(forget, json={}).status_code == expected
    assert open_registry().find(table_id) is None
    logged = client.get("/api/v2/eventLogs", params={"event": "lake.forget_table", "order_by": "-id"}).json()
    assert logged["total_entries"] >= 1, "the refused ones are none"
    newest = logged["event_logs"][0]
    assert (newest["owner"], json.loads(newest["extra"])["base_path"]) == ("the-admin", path)


def test_shipped_dags_round_trip_through_serialisation() -> None:
    from airflow.dag_processing.dagbag import DagBag
    from airflow.serialization.serialized_objects import DagSerialization

    bag = DagBag(dag_folder=str(ROOT / "dags"))
    assert {"lake_table_service", "lake_watch", "lake_discovery"} <= set(bag.dags)
    for dag in bag.dags.values():
        assert dag.doc_md
        assert "lake" in dag.tags
        restored = DagSerialization.deserialize_dag(DagSerialization.serialize_dag(dag))
        assert restored.task_ids == dag.task_ids


def test_service_dag_params_have_forms_and_are_checked() -> None:
    from airflow.dag_processing.dagbag import DagBag
    from airflow.sdk.exceptions import ParamValidationError

    from airflow_lake_provider.job_contract import Service

    params = DagBag(dag_folder=str(ROOT / "dags")).dags["lake_table_service"].params
    assert params.get_param("service").schema["enum"] == [service.value for service in Service]
    for wrong in ({"base_path": ""}, {"base_path": "/x", "service": "explode"}, {"base_path": "/x", "mode": "no"}):
        changed = copy.deepcopy(params)
        with pytest.raises(ParamValidationError):
            changed.update(wrong)


def test_task_links_to_the_page_of_its_table(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.dag_processing.dagbag import DagBag
    from airflow.serialization.serialized_objects import DagSerialization

    from airflow_lake_provider.hudi.base_path import table_id_of
    from airflow_lake_provider.operators.table_service import HudiTableServiceOperator, LakeTableLink

    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://airflow.example/team/")
    task, key = (
        HudiTableServiceOperator(task_id="t", base_path="s3://Lake/shop/orders/", service="compaction"),
        cast("Any", None),
    )
    expected = f"https://airflow.example/team/plugin/lake/tables/{table_id_of('s3://Lake/shop/orders')}"
    assert LakeTableLink().get_link(task, ti_key=key) == expected
    task.base_path = "{{ no path }}"
    assert LakeTableLink().get_link(task, ti_key=key) == ""
    # Airflow's servers know the button of a task that they did not load: by what is serialised.
    for name, task_id in (("lake_table_service", "run_service"), ("lake_replication", "replicate")):
        dag = DagBag(dag_folder=str(ROOT / "dags")).dags[name]
        restored = DagSerialization.deserialize_dag(DagSerialization.serialize_dag(dag))
        assert "Lake table" in restored.get_task(task_id).extra_links
