"""The Lake's pages in a real Airflow: its menu, its themes, its time zone, its users."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.orm import sessionmaker

from airflow_lake_provider.manager.db.database import DatabaseClock
from airflow_lake_provider.manager.db.registry import Registry
from local_stack.airflow import LocalAirflow
from tests.support.browser import needs_chromium, open_browser, open_page
from tests.support.lake_pages import RecordedRuns, fill
from tests.system.conftest import make_airflow

pytestmark = [pytest.mark.system, needs_chromium]

PASSWORDS = {"ada": "ada-password", "vic": "vic-password"}
SCREENS = os.environ.get("LAKE_SCREENS", "")
"""A folder: every page is kept there as a picture."""

BRIGHTNESS = """() => {
    const canvas = document.createElement('canvas').getContext('2d');
    canvas.fillStyle = getComputedStyle(document.querySelector('.lake .panel')).backgroundColor;
    canvas.fillRect(0, 0, 1, 1);
    const [red, green, blue] = canvas.getImageData(0, 0, 1, 1).data;
    return red + green + blue;
}"""
"""Of a panel's background, 0 to 765, in whatever way the theme writes colours."""


@pytest.fixture(scope="module")
def airflow() -> Iterator[LocalAirflow]:
    """An API server with an administrator and a viewer, and made-up tables in its registry."""
    # The DAGs are in the database: no DAG processor runs here.
    airflow = make_airflow("pages")
    airflow.tables_file = None
    passwords = airflow.home / "passwords.json"
    passwords.write_text(json.dumps(PASSWORDS))
    airflow.settings |= {
        "AIRFLOW__LAKE__LOOP_ENABLED": "False",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "False",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "ada:admin,vic:viewer",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(passwords),
    }
    try:
        airflow.start(("api-server",))
        yield airflow
    finally:
        airflow.stop()


@pytest.fixture(scope="module")
def table_id(airflow: LocalAirflow) -> str:
    engine = create_engine(f"sqlite:///{airflow.home}/airflow.db", connect_args={"timeout": 30})
    make = sessionmaker(engine)
    registry = Registry(make, DatabaseClock(make))
    runs = RecordedRuns()
    lake = airflow.allowed_roots[0]
    found = fill(registry, lake, 120, int(time.time() * 1000), runs)
    with engine.begin() as connection:
        for number, run in enumerate(runs.rows[:60]):
            record_run(connection, run, number)
    engine.dispose()
    return found


def record_run(connection: Any, run: Any, number: int) -> None:
    """Insert a run as Airflow and the manager leave it; each tenth was started by hand."""
    run_id = f"manual__{number}" if number % 10 == 9 else run.run_id
    times = {
        name: None if value is None else time.strftime("%Y-%m-%d %H:%M:%S.000000", time.gmtime(value / 1000))
        for name, value in (("created", run.created_ms), ("started", run.started_ms), ("ended", run.ended_ms))
    }
    user = "ada" if run_id.startswith("manual__") else "lake manager"
    values = times | {"run_id": run_id, "state": run.state, "conf": json.dumps({"reason": run.reason}), "user": user}
    connection.execute(
        text(
            "insert into dag_run (dag_id, queued_at, start_date, end_date, state, run_id, run_type, conf, run_after, "
            "span_status, clear_number, triggering_user_name) values ('lake_table_service', :created, :started, :ended,"
            " :state, :run_id, 'manual', :conf, :created, 'not_started', 0, :user)"
        ),
        values,
    )
    connection.execute(
        text("insert into lake_run (run_id, table_id, created_ms, service) values (:run_id, :table_id, :at, :service)"),
        {"run_id": run_id, "table_id": run.table_id, "at": run.created_ms, "service": run.service},
    )


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with open_browser() as browser:
        yield browser


def log_in(page: Any, airflow: LocalAirflow, user: str) -> None:
    page.goto(airflow.url)
    page.wait_for_url("**/auth/login**", timeout=60_000)
    page.fill("input[name=username]", user)
    page.fill("input[name=password]", PASSWORDS[user])
    page.click("button[type=submit]")
    page.wait_for_url(f"{airflow.url}/", timeout=60_000)


def keep(page: Any, name: str) -> None:
    if SCREENS:
        page.wait_for_timeout(1200)
        page.screenshot(path=f"{SCREENS}/{name}.png")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_pages_open_from_airflows_menu_without_complaints(
    airflow: LocalAirflow, table_id: str, browser: Any, theme: str
) -> None:
    with open_page(browser, color_scheme=theme) as opened:
        page = opened.page
        page.add_init_script(
            f"localStorage.setItem('theme', '{theme}'); localStorage.setItem('timezone', '\"Asia/Tokyo\"')"
        )
        log_in(page, airflow, "ada")
        page.locator("a[href$='/plugin/lake']").first.click(timeout=60_000)
        page.get_by_text("120 tables", exact=True).wait_for(timeout=60_000)
        opened.complaints.clear()  # of Airflow's own home page
        keep(page, f"lake-{theme}")
        assert page.evaluate("document.documentElement.classList.contains('dark')") is (theme == "dark")
        assert (page.evaluate(BRIGHTNESS) < 300) is (theme == "dark")
        page.get_by_placeholder("Search by name, database or path").fill("/orders")
        page.get_by_role("link", name="orders", exact=True).click()
        page.get_by_text("Compaction runs").first.wait_for()
        page.locator("svg .mark").first.wait_for()
        keep(page, f"table-{theme}")
        page.get_by_role("tab", name="instants").click()
        page.get_by_role("tabpanel").get_by_text("GMT+9").first.wait_for()
        page.get_by_role("link", name="Operations").click()
        page.get_by_role("cell", name="ada", exact=True).first.wait_for()
        keep(page, f"operations-{theme}")
        page.get_by_role("link", name="Backlog", exact=True).click()
        page.get_by_role("region", name="Due services", exact=True).locator("tbody tr").first.wait_for()
        page.get_by_text("The tables file sets no budget").wait_for()
        keep(page, f"backlog-{theme}")
        assert opened.violations() == []
        assert opened.complaints == []


def test_run_by_hand_is_among_the_operations(airflow: LocalAirflow, table_id: str, browser: Any) -> None:
    with open_page(browser) as opened:
        log_in(opened.page, airflow, "vic")
        rows = opened.page.evaluate("fetch('/lake/api/operations').then((answer) => answer.json())")["rows"]
    assert len(rows) == 60
    by_hand = [row for row in rows if row["run_id"].startswith("manual__")]
    assert len(by_hand) == 6
    assert {row["by"] for row in by_hand} == {"ada"}
    assert all(row["by"] == "manager" for row in rows if row not in by_hand)


def press_on_card(page: Any, airflow: LocalAirflow, table_id: str, service: str, button: str) -> Any:
    """Open a table's page, and press a button of a service's card; return the card."""
    page.goto(f"{airflow.url}/plugin/lake/tables/{table_id}")
    card = page.locator("article.card").filter(has_text=service).first
    card.get_by_role("button", name=button).click(timeout=60_000)
    return card


def test_dry_run_starts_from_the_page_for_who_may_and_stands_in_airflows_audit_log(
    airflow: LocalAirflow, table_id: str, browser: Any
) -> None:
    runs = "/api/v2/dags/lake_table_service/dagRuns"
    with open_page(browser) as opened:
        page = opened.page
        log_in(page, airflow, "ada")
        press_on_card(page, airflow, table_id, "Compaction", "Dry run")
        dialog = page.get_by_role("dialog")
        dialog.get_by_role("button", name="Dry run").click()
        dialog.get_by_role("link", name="Open the run").wait_for(timeout=60_000)
        dialog.get_by_role("button", name="Close").click()
        page.get_by_role("cell", name="dry run by ada on the Lake page").wait_for(timeout=60_000)
        keep(page, "dry-run")
        found = page.evaluate(f"fetch('{runs}?run_id_pattern=by_hand_').then((answer) => answer.json())")
        (run,) = found["dag_runs"]
        assert run["triggering_user_name"] == "ada"
        assert run["conf"]["dry_run"] is True
        audit = page.evaluate("fetch('/api/v2/eventLogs?event=trigger_dag_run').then((answer) => answer.json())")
        (entry,) = audit["event_logs"]
        assert (entry["dag_id"], entry["owner"]) == ("lake_table_service", "ada")
    with open_page(browser) as opened:
        page = opened.page
        log_in(page, airflow, "vic")
        with page.expect_response("**/lake/api/me") as answered:
            page.goto(f"{airflow.url}/plugin/lake/tables/{table_id}")
        assert not any(value for name, value in answered.value.json().items() if name.startswith("may_"))
        page.get_by_text("Compaction runs").first.wait_for(timeout=60_000)
        assert page.get_by_role("button", name="Dry run").count() == 0
        post = "{method: 'POST', headers: {'Content-Type': 'application/json'}, body: '{\"logical_date\": null}'}"
        assert page.evaluate(f"fetch('{runs}', {post}).then((answer) => answer.status)") == 403
        forget = f"/lake/api/tables/{table_id}/forget"
        assert page.evaluate(f"fetch('{forget}', {post}).then((answer) => answer.status)") == 403


def test_one_service_is_paused_by_airflows_variable_and_resumed_and_both_stand_in_its_audit_log(
    airflow: LocalAirflow, table_id: str, browser: Any
) -> None:
    variable = "fetch('/api/v2/variables/lake_tables').then((answer) => answer.json())"
    with open_page(browser) as opened:
        page = opened.page
        log_in(page, airflow, "ada")
        card = press_on_card(page, airflow, table_id, "Archive", "Pause")
        dialog = page.get_by_role("dialog", name="Pause archive of orders")
        dialog.get_by_label("Why").fill("an audit")
        dialog.get_by_role("button", name="Pause").click()
        dialog.get_by_text("Variable lake_tables is written. It takes effect").wait_for(timeout=60_000)
        dialog.get_by_role("button", name="Close").click()
        (entry,) = json.loads(page.evaluate(variable)["value"])["tables"]
        assert entry["archive"]["paused"].startswith("ada on ")
        assert entry["archive"]["paused"].endswith(": an audit")
        # The server reads the Variable at most 15 s later.
        card.locator(".chip", has_text="paused").wait_for(timeout=90_000)
        keep(page, "paused")
        card.get_by_role("button", name="Resume").click()
        dialog = page.get_by_role("dialog", name="Resume archive of orders")
        dialog.get_by_role("button", name="Resume").click()
        dialog.get_by_text("Variable lake_tables is written. It takes effect").wait_for(timeout=60_000)
        assert json.loads(page.evaluate(variable)["value"]) == {"tables": []}
        for event in ("post_variable", "patch_variable"):
            found = page.evaluate(f"fetch('/api/v2/eventLogs?event={event}').then((answer) => answer.json())")
            assert [one["owner"] for one in found["event_logs"]] == ["ada"], event


def test_lake_stands_in_airflows_own_pages(airflow: LocalAirflow, table_id: str, browser: Any) -> None:
    """A card on the dashboard, and a tab on a run, which leads to its table."""
    with open_page(browser) as opened:
        page = opened.page
        log_in(page, airflow, "ada")
        page.get_by_text("120 tables, ").wait_for(timeout=60_000)
        keep(page, "dashboard")
        rows = page.evaluate("fetch('/lake/api/operations?state=success').then((answer) => answer.json())")["rows"]
        run = next(row for row in rows if row["table_name"] != "orders")
        page.goto(f"{airflow.url}/dags/lake_table_service/runs/{run['run_id']}/plugin/lake_dag_run")
        table = page.get_by_role("link", name=f"{run['database']}.{run['table_name']}", exact=True)
        table.wait_for(timeout=60_000)
        page.get_by_text(run["reason"]).first.wait_for()
        keep(page, "run-tab")
        table.click()
        page.wait_for_url(f"**/plugin/lake/tables/{run['table_id']}")


def test_viewer_may_read_and_no_session_sees_nothing(airflow: LocalAirflow, table_id: str, browser: Any) -> None:
    with open_page(browser) as opened:
        log_in(opened.page, airflow, "vic")
        opened.page.goto(f"{airflow.url}/plugin/lake/tables/{table_id}")
        opened.page.get_by_text("Compaction runs").first.wait_for(timeout=60_000)
    for path in (
        "api/overview",
        "api/tables",
        f"api/tables/{table_id}",
        "api/operations.csv",
        "api/backlog",
        "app/lake.js",
    ):
        answer = httpx.get(f"{airflow.url}/lake/{path}", timeout=30)
        assert answer.status_code == 401
        assert "orders" not in answer.text
