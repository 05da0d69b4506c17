"""Airflow with several teams: the pages are for users who may read the service DAG, as Airflow itself decides.

Airflow's own app, auth manager and database, with the provider's pages mounted by its plugin.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytestmark = [
    pytest.mark.integration,
    # Airflow's own.
    pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning"),
]

DAG = "/api/v2/dags/lake_table_service"


@pytest.fixture(scope="module")
def app() -> Iterator[Any]:
    from airflow.api_fastapi.app import create_app

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS", "False")
        yield create_app(apps="core")


@pytest.fixture
def team(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The shipped DAGs belong to a team."""
    from airflow.models.dag import _team_name_cache
    from airflow.models.dagbundle import DagBundleModel
    from airflow.models.team import Team
    from airflow.utils.session import create_session

    def set_teams(*names: str) -> None:
        with create_session() as session:
            bundle = session.get(DagBundleModel, "lake")
            assert bundle is not None
            bundle.teams = [session.merge(Team(name=name)) for name in names]
        _team_name_cache.clear()

    monkeypatch.setenv("AIRFLOW__CORE__MULTI_TEAM", "True")
    set_teams("platform")
    yield
    set_teams()


def login(app: Any, role: str, *teams: str) -> Any:
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
    from starlette.testclient import TestClient

    client = TestClient(app, raise_server_exceptions=False)
    user = SimpleAuthManagerUser(username=f"{role}-of-{teams}", role=role, teams=list(teams))
    client.cookies.set("_token", get_auth_manager().generate_jwt(user))
    return client


def routes() -> list[tuple[str, str]]:
    """Return method and path of each route of the pages."""
    from fastapi.routing import APIRoute

    from airflow_lake_provider.plugins.lake_plugin import _fastapi_apps

    (pages,) = [mounted["app"] for mounted in _fastapi_apps() if mounted["name"] == "Lake"]
    found = [route for route in pages.routes if isinstance(route, APIRoute)]
    return [(method, f"/lake{route.path}") for route in found for method in route.methods]


def send(client: Any, method: str, path: str) -> Any:
    names = dict.fromkeys(("table_id", "run_id", "name", "instant", "service", "sink", "plan"), "x")
    body = {} if method in {"POST", "PUT", "PATCH"} else None
    return client.request(method, path.format(**names), json=body)


@pytest.mark.parametrize(("role", "teams"), [("op", ["sales"]), ("viewer", []), ("op", ["sales", "finance"])])
def test_users_of_other_teams_get_no_page_and_no_action(app: Any, team: None, role: str, teams: list[str]) -> None:
    client = login(app, role, *teams)
    assert client.get(DAG).status_code == 403, "Airflow itself"
    answers = {(method, path): send(client, method, path).status_code for method, path in routes()}
    assert len(answers) > 10
    assert set(answers.values()) == {403}, answers


def test_users_of_the_team_may_what_airflow_allows_them(app: Any, team: None) -> None:
    viewer, operator = login(app, "viewer", "platform"), login(app, "op", "platform")
    assert viewer.get(DAG).status_code == 200, "Airflow itself"
    for method, path in routes():
        assert send(operator, method, path).status_code != 403, (method, path)
    rights = {
        role: {name for name, value in client.get("/lake/api/me").json().items() if name.startswith("may_") and value}
        for role, client in (("viewer", viewer), ("op", operator))
    }
    assert rights["viewer"] == set()
    assert rights["op"] >= {"may_run", "may_clear", "may_index", "may_forget"}


def test_dag_that_airflow_does_not_know_yet_opens_no_page_to_other_teams(
    app: Any, team: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.models import DagModel

    monkeypatch.setattr(DagModel, "get_team_name", lambda *_, **__: None)
    monkeypatch.setattr(DagModel, "get_dagmodel", lambda *_, **__: None)
    assert login(app, "op", "sales").get("/lake/api/me").status_code == 403


def test_without_teams_every_reader_of_the_dag_sees_the_pages(app: Any) -> None:
    answer = login(app, "viewer").get("/lake/api/me")
    assert answer.status_code == 200, answer.text
