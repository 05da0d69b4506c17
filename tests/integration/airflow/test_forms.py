"""The shipped DAGs' forms: what Airflow requires of a field before a form can be sent, and what a sent one becomes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def client() -> Any:
    """Airflow's API in this process. What it warns of when it is made is Airflow's own."""
    from airflow.api_fastapi.app import create_app, get_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
    from starlette.testclient import TestClient

    client = TestClient(create_app(apps="core"))
    user = SimpleAuthManagerUser(username="boss", role="admin")
    client.cookies.set("_token", get_auth_manager().generate_jwt(user))
    return client


def find_missing(params: dict[str, Any]) -> set[str]:
    """Return the fields without which Airflow 3.3's form keeps its Trigger button disabled.

    Its rule: a field is required unless its type is a list that has "null" in it, and an empty text is missing.
    """
    missing = set()
    for name, param in params.items():
        kinds = param["schema"].get("type")
        is_required = bool(kinds) and not (isinstance(kinds, list) and "null" in kinds)
        if is_required and param["value"] in (None, ""):
            missing.add(name)
    return missing


# Airflow's own: a deprecated field is shown.
@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")
@pytest.mark.parametrize(
    ("dag_id", "needed"),
    [
        ("lake_table_service", {"base_path"}),
        ("lake_reindex", {"base_path"}),
        ("lake_replication", set()),
        ("lake_streams", set()),
        ("lake_watch", set()),
        ("lake_discovery", set()),
        ("lake_upgrade", {"tables"}),
        ("lake_warm", {"key"}),
    ],
)
def test_form_can_be_sent_with_nothing_but_what_is_needed(client: Any, dag_id: str, needed: set[str]) -> None:
    params = client.get(f"/api/v2/dags/{dag_id}/details").json()["params"]
    assert find_missing(params) == needed
    # With the newest draft the check of a run's Params takes three times as long.
    assert all(param["schema"]["$schema"].endswith("draft-07/schema#") for param in params.values())


@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")
@pytest.mark.parametrize(
    ("dag_id", "chosen"),
    [("lake_table_service", {"service", "mode"}), ("lake_reindex", {"mode"}), ("lake_replication", {"action", "mode"})],
)
def test_each_value_that_people_choose_from_has_words_and_each_dag_the_lake_as_its_owner(
    client: Any, dag_id: str, chosen: set[str]
) -> None:
    found = client.get(f"/api/v2/dags/{dag_id}/details").json()
    assert found["owners"] == ["lake"]
    schemas = {name: param["schema"] for name, param in found["params"].items()}
    assert {name for name, schema in schemas.items() if "values_display" in schema} == chosen
    for name in chosen:
        assert list(schemas[name]["values_display"]) == schemas[name]["enum"]


@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")
@pytest.mark.parametrize("name", ["table_service", "reindex", "replication", "streams", "watch", "discovery", "warm"])
def test_dag_offers_no_backfill(client: Any, name: str) -> None:
    """Its runs have no time of their own: a backfill of a month of `lake_watch` would be 43,200 of them."""
    found = client.get(f"/api/v2/dags/lake_{name}").json()
    assert found["is_backfillable"] is False
    body = {"dag_id": f"lake_{name}", "from_date": "2026-11-01T00:00:00Z", "to_date": "2026-11-02T00:00:00Z"}
    assert client.post("/api/v2/backfills", json=body).status_code >= 400


@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")
@pytest.mark.parametrize(
    ("dag_id", "first"),
    [
        ("lake_table_service", ["base_path", "service", "dry_run", "mode"]),
        ("lake_reindex", ["base_path", "indexes", "mode", "drop_first", "drop", "dry_run"]),
        ("lake_replication", ["action", "base_path", "name", "sink", "rows", "seek_until"]),
    ],
)
def test_form_begins_with_what_a_run_by_hand_needs_and_folds_the_rest(
    client: Any, dag_id: str, first: list[str]
) -> None:
    params = client.get(f"/api/v2/dags/{dag_id}/details").json()["params"]
    assert sorted(name for name, param in params.items() if "section" not in param["schema"]) == sorted(first)
    assert all(param["schema"]["title"] for param in params.values())


@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")
def test_form_of_a_service_that_is_sent_with_empty_fields_leaves_them_to_the_tables_policy(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through Airflow's REST API, as the form sends it; then rendered by Airflow, as in a worker."""
    from airflow.dag_processing.dagbag import DagBag

    from airflow_lake_provider.execution.arguments import TableSettings, parse_given
    from airflow_lake_provider.operators.table_service import HudiTableServiceOperator

    shown = client.get("/api/v2/dags/lake_table_service/details").json()["params"]
    conf = {name: param["value"] for name, param in shown.items()} | {"base_path": "/lake/orders", "service": "clean"}
    made = client.post("/api/v2/dags/lake_table_service/dagRuns", json={"logical_date": None, "conf": conf})
    assert made.is_success, made.text

    seen: list[Any] = []
    monkeypatch.setattr(HudiTableServiceOperator, "find_timeout_s", lambda *_: 60.0)
    monkeypatch.setattr(
        HudiTableServiceOperator,
        "execute",
        lambda self, context: seen.append(SimpleNamespace(given=parse_given(self), name=self.table_name)),
    )
    dag = DagBag(dag_folder=str(ROOT / "dags")).dags["lake_table_service"]
    assert dag.test(run_conf=made.json()["conf"]).state == "success"
    assert (seen[0].given, seen[0].name) == (TableSettings(hudi_options={}, spark_conf={}, conflict={}), "")
