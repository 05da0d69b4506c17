"""Users and roles of FAB, Airflow in a path, nginx with TLS: which pages, rights and tokens each role has.

Report: https://github.com/apache/airflow/pull/54113 (a user without the right to read plugins gets no page of theirs)
Report: https://github.com/apache/airflow/issues/47878 (a session's cookie behind a proxy was not `Secure`)
"""

from __future__ import annotations

import hashlib
import json
import shutil
import ssl
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from airflow_lake_provider.hudi.base_path import table_id_of
from local_stack.fab import PASSWORD, FabAirflow, make_environment
from local_stack.gateway import Authority, Gateway
from local_stack.postgres import LocalPostgres
from local_stack.processes import wait_until
from tests.support.browser import needs_chromium, open_browser, open_page
from tests.support.tables import HandMadeTable
from tests.system.conftest import WORK

pytestmark = [pytest.mark.system, pytest.mark.soak(covered_by="tests/system/test_lake_pages.py")]

SIGHT = [("can_read", "Website"), ("can_read", "DAG Runs"), ("menu_access", "Browse")]
OF_SERVICES = ("can_read", "DAG:lake_table_service")
PLUGINS = ("can_read", "Plugins")
OWN_ROLES = {
    "Reader": [*SIGHT, OF_SERVICES],
    "Bank": [*SIGHT, OF_SERVICES, PLUGINS],
    "Runner": [*SIGHT, OF_SERVICES, PLUGINS, ("can_edit", "DAG:lake_table_service"), ("can_create", "DAG Runs")],
    "Other": [*SIGHT, ("can_read", "DAG:lake_replication")],
}
USERS = {"opal": "Op", "uma": "User", "vic": "Viewer", "nora": "Public", "role:Bank": "Viewer"} | {
    role.lower(): role for role in OWN_ROLES
}
FLAGS = ("may_run", "may_clear", "may_index", "may_pause", "may_forget")
MAY = {
    "ada": FLAGS,
    "opal": FLAGS,
    "uma": ("may_run", "may_clear", "may_index", "may_forget"),
    "vic": (),
    "reader": (),
    "bank": (),
    "runner": ("may_run",),
}
"""Of each user that sees the pages, what FAB's roles allow there."""
SEES_HIDDEN = {"ada", "bank"}
IN_MENU = {"ada", "opal", "bank", "runner"}
"""Users whose roles may read plugins: Airflow's page asks for them before it shows one of theirs."""


@dataclass
class Site:
    """The Airflow, as a browser or a script reaches it."""

    airflow: FabAirflow
    gateway: Gateway
    tokens: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"{self.gateway.url}{self.airflow.path}"

    def ask(self, method: str, path: str, user: str = "", token: str = "", **request: Any) -> httpx.Response:
        """Ask through nginx, with a token of a user's or the given one."""
        token = token or (self.log_in(user) if user else "")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        trust = ssl.create_default_context(cafile=str(self.gateway.authority.certificate))
        return httpx.request(method, self.url + path, headers=headers, verify=trust, timeout=60, **request)

    def log_in(self, user: str) -> str:
        if user not in self.tokens:
            answer = self.ask("POST", "/auth/token", json={"username": user, "password": PASSWORD})
            self.tokens[user] = answer.json()["access_token"]
        return self.tokens[user]

    def give(self, user: str, role: str) -> None:
        """Give a user another role, by FAB's own API."""
        sent = {"username": user, "first_name": user, "last_name": user, "email": f"{user}@example.org"}
        path = f"/auth/fab/v1/users/{user}?update_mask=roles"
        changed = self.ask("PATCH", path, "ada", json=sent | {"roles": [{"name": role}]})
        assert changed.is_success, changed.text

    def table(self, name: str) -> HandMadeTable:
        return HandMadeTable(self.airflow.allowed_roots[0] / name)


@pytest.fixture(scope="module")
def site(postgres: LocalPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    make_environment()
    folder = tmp_path_factory.mktemp("fab")
    # nginx's worker runs as another user, which must be able to enter it.
    for parent in (folder, *folder.parents[:2]):
        parent.chmod(0o755)
    home = WORK / "fab"
    shutil.rmtree(home, ignore_errors=True)
    lake = home / "lake"
    for name in ("shop/orders", "bank/ledger"):
        table = HandMadeTable.create(lake / name, name=name.partition("/")[2])
        for second in range(1, 5):
            table.commit(second)
    tokens = home / "tokens.yaml"
    entry = {
        "name": "bank",
        "roots": [f"{lake}/bank"],
        "rights": ["read", "operate", "notify"],
        "viewers": ["role:Bank", "role:Admin"],
        "sha256": [hashlib.sha256(b"token of the bank").hexdigest()],
    }
    tokens.write_text(json.dumps({"tokens": [entry]}), encoding="utf-8")
    airflow = FabAirflow(home / "airflow", (lake,), database_url=postgres.create_database("fab"), path="/airflow")
    gateway = Gateway(folder, Authority.create(folder), (airflow.port,))
    airflow.settings = {
        "AIRFLOW__API__BASE_URL": f"{gateway.url}{airflow.path}",
        "AIRFLOW__FAB__COOKIE_SECURE": "True",
        "AIRFLOW__FAB__CACHE_TTL": "2",
        "AIRFLOW__LAKE__TOKENS_FILE": str(tokens),
    }
    site = Site(airflow, gateway)
    try:
        gateway.start()
        airflow.migrate()
        airflow.run("dags", "reserialize")
        airflow.add_user("ada", "Admin")
        airflow.start(("api-server",))
        add_users(site)
        for name in ("shop/orders", "bank/ledger"):
            hint = {"hints": [{"base_path": str(site.table(name).path), "table_name": name.partition("/")[2]}]}
            assert site.ask("POST", "/v1/hoodie/hints", token=airflow.service_token, json=hint).is_success
        wait_until(lambda: len(tables_of(site, "ada")) == 2, 60, "both tables")
        yield site
    finally:
        airflow.stop()
        gateway.kill()


def add_users(site: Site) -> None:
    for role, rights in OWN_ROLES.items():
        actions = [{"action": {"name": action}, "resource": {"name": resource}} for action, resource in rights]
        made = site.ask("POST", "/auth/fab/v1/roles", "ada", json={"name": role, "actions": actions})
        assert made.is_success, made.text
    for user, role in USERS.items():
        mail = f"{user.replace(':', '-')}@example.org"
        person = {"username": user, "first_name": user, "last_name": user, "email": mail, "password": PASSWORD}
        made = site.ask("POST", "/auth/fab/v1/users", "ada", json=person | {"roles": [{"name": role}]})
        assert made.is_success, made.text


def tables_of(site: Site, user: str) -> set[str]:
    answer = site.ask("GET", "/lake/api/tables", user)
    return {row["name"] for row in answer.json()["rows"]} if answer.is_success else set()


@pytest.mark.parametrize("user", MAY)
def test_each_role_sees_and_may_what_fab_lets_it(site: Site, user: str) -> None:
    me = site.ask("GET", "/lake/api/me", user).json()
    assert (me["name"], tuple(name for name in FLAGS if me[name])) == (user, MAY[user])
    assert tables_of(site, user) == {"orders"} | ({"ledger"} if user in SEES_HIDDEN else set())
    orders, ledger = (table_id_of(str(site.table(name).path)) for name in ("shop/orders", "bank/ledger"))
    body = {"table_ids": [orders, ledger], "service": "compaction", "dry_run": True}
    sent = site.ask("POST", "/lake/api/bulk/run", user, json=body)
    assert sent.status_code == (200 if "may_run" in MAY[user] else 403)
    if sent.is_success and user not in SEES_HIDDEN:
        assert "among those that you may see" in sent.json()["lines"][1]["reason"]
    pause = {"text": "", "paused": True, "why": "a test"}
    sent = site.ask("POST", f"/lake/api/tables/{orders}/pause", user, json=pause)
    assert sent.status_code == (200 if "may_pause" in MAY[user] else 403)
    sent = site.ask("POST", "/lake/api/tables/nothing/forget", user, json={})
    assert sent.status_code == (404 if "may_forget" in MAY[user] else 403)


@pytest.mark.parametrize(("user", "status"), [("nora", 403), ("other", 403), ("", 401)])
def test_others_see_nothing(site: Site, user: str, status: int) -> None:
    for page in ("me", "overview", "tables", "backlog", "operations", "bill", "bill.csv", "operations.csv"):
        assert site.ask("GET", f"/lake/api/{page}", user).status_code == status, page


def test_user_who_is_called_like_a_role_of_fabs_is_none_of_its_members(site: Site) -> None:
    assert tables_of(site, "role:Bank") == {"orders"}


def test_tokens_of_users_and_of_the_manager_open_nothing_of_each_others(site: Site) -> None:
    routes = ("/v1/hoodie/tables", "/v1/hoodie/reports/overview", "/v1/hoodie/config")
    assert {site.ask("GET", route, "ada").status_code for route in routes} == {401}
    for token in (site.airflow.service_token, site.airflow.callback_token, "token of the bank"):
        assert site.ask("GET", "/lake/api/tables", token=token).status_code in {401, 403}
        assert site.ask("GET", "/api/v2/dags", token=token).status_code in {401, 403}
    mine = site.ask("GET", "/v1/hoodie/tables", token="token of the bank").json()["tables"]
    assert [row["table_name"] for row in mine] == ["ledger"]


def test_run_that_a_role_of_ones_own_may_start_stands_among_the_operations(site: Site) -> None:
    conf = {"base_path": str(site.table("shop/orders").path), "table_name": "orders", "service": "compaction"}
    started = {"dag_run_id": "by-hand", "logical_date": None, "conf": conf}
    runs = "/api/v2/dags/lake_table_service/dagRuns"
    assert site.ask("POST", runs, "reader", json=started).status_code == 403
    assert site.ask("POST", runs, "runner", json=started).is_success
    (row,) = site.ask("GET", "/lake/api/operations", "vic").json()["rows"]
    assert (row["run_id"], row["by"], row["table_name"]) == ("by-hand", "runner", "orders")


def test_role_that_is_taken_away_a_user_who_leaves_and_a_logout_end_a_session(
    site: Site, postgres: LocalPostgres
) -> None:
    assert tables_of(site, "vic")
    site.give("vic", "Public")
    wait_until(lambda: not tables_of(site, "vic"), 30, "the end of the role")
    site.give("vic", "Viewer")
    wait_until(lambda: bool(tables_of(site, "vic")), 30, "the role")
    postgres.query("update ab_user set active = false where username = 'vic'", "fab")
    wait_until(lambda: not tables_of(site, "vic"), 30, "the end of the user's session")
    postgres.query("update ab_user set active = true where username = 'vic'", "fab")
    token = site.log_in("uma")
    assert site.ask("GET", "/lake/api/me", token=token).is_success
    trust = ssl.create_default_context(cafile=str(site.gateway.authority.certificate))
    left = httpx.get(f"{site.url}/api/v2/auth/logout", cookies={"_token": token}, verify=trust, follow_redirects=True)
    assert left.is_success
    assert site.ask("GET", "/lake/api/me", token=token).status_code in {401, 403}
    site.tokens.pop("uma")


@needs_chromium
def test_login_leads_back_to_the_page_and_shows_it_to_users_that_may_read_plugins(site: Site) -> None:
    with open_browser() as browser:
        # FAB refuses the sixth login within 40 s.
        for user in ("ada", "vic", "reader", "bank"):
            with open_page(browser, ignore_https_errors=True) as opened:
                page = opened.page
                page.goto(f"{site.url}/plugin/lake")
                page.wait_for_url("**/airflow/auth/login/**", timeout=60_000)
                page.fill("input[name=username]", user)
                page.fill("input[name=password]", PASSWORD)
                page.click("input[type=submit]")
                page.wait_for_url(f"{site.url}/plugin/lake", timeout=60_000)
                shown = page.locator(".lake") if user in IN_MENU else page.get_by_text("Page Not Found")
                shown.first.wait_for(timeout=60_000)
                assert (page.locator("a[href$='/plugin/lake']").count() > 0) is (user in IN_MENU), user
                cookies = [(one["path"], one["secure"]) for one in page.context.cookies()]
                assert set(cookies) == {("/airflow/", True)}, user
    # As docs/deployment.md says.
    site.airflow.run("roles", "add-perms", "Viewer", "--resource", "Plugins", "--action", "can_read")
    wait_until(lambda: site.ask("GET", "/api/v2/plugins", "vic").is_success, 60, "the right to read plugins")
